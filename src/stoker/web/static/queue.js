// The queue: filters go into the address, and rows that are selected stay so while the list is drawn anew.
import { refresh, rest, say, tellTimes } from "./page.js";
import { order } from "./orders.js";

const live = () => document.getElementById("live");
const selected = new Map();

// -- filters ------------------------------------------------------------------------------------------------------------

const form = document.getElementById("filters");
let typing;
function address() {
  const query = new URLSearchParams(location.search);
  for (const name of ["name", "user", "tenant", "label", "class"]) {
    const value = form.elements[name].value.trim();
    value ? query.set(name, value) : query.delete(name);
  }
  for (const name of ["mine", "members"]) form.elements[name].checked ? query.set(name, "true") : query.delete(name);
  query.delete("after");
  const text = query.toString();
  return text ? `/queue?${text}` : "/queue";
}
function show(href) {
  history.replaceState(null, "", href);
  live().dataset.src = href;
  refresh(live());
}
form.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => show(address()), 300);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(address());
});

// -- selection ------------------------------------------------------------------------------------------------------------

const bulk = document.getElementById("bulk");
const rows = () => [...live().querySelectorAll("tr[data-job]")];
function about(row) {
  const { job, name, state, user } = row.dataset;
  return { id: job, name, state, user };
}
function draw() {
  if (!bulk) return;
  for (const row of rows()) {
    const box = row.querySelector("input[type=checkbox]");
    if (!box) continue;
    box.checked = selected.has(row.dataset.job);
    if (box.checked) selected.set(row.dataset.job, about(row));
  }
  const all = document.getElementById("all");
  if (all) all.checked = selected.size > 0 && rows().every((row) => selected.has(row.dataset.job));
  bulk.hidden = selected.size === 0;
  document.getElementById("bulk-count").textContent = `${selected.size} selected`;
}
document.addEventListener("change", (event) => {
  if (event.target.id === "all") {
    for (const row of rows()) {
      if (event.target.checked && row.querySelector("input[type=checkbox]")) selected.set(row.dataset.job, about(row));
      else selected.delete(row.dataset.job);
    }
    draw();
  } else {
    const row = event.target.closest?.("tr[data-job]");
    if (!row) return;
    event.target.checked ? selected.set(row.dataset.job, about(row)) : selected.delete(row.dataset.job);
    draw();
  }
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-order]");
  if (button && (await order(button.dataset.order, [...selected.values()]))) {
    selected.clear();
    draw();
  }
  if (event.target.id === "bulk-all") {
    // As many as one list has: those on later pages too.
    const query = new URLSearchParams(new URL(live().dataset.src, location.href).search);
    for (const [name, value] of [["limit", "1000"], ["sort", query.get("sort") ?? "live"]]) query.set(name, value);
    query.delete("after");
    try {
      const told = await rest("GET", `/api/v1/jobs?${query}`);
      for (const job of told.jobs) if (!job.reduced && !job.outline) selected.set(job.id, { id: job.id, name: job.name, state: job.state, user: job.user || job.submitted_by });
      if (told.next) say(`The first ${told.jobs.length} of ${told.total} are selected`);
    } catch (fault) {
      say(fault.message, true);
    }
    draw();
  }
  if (event.target.id === "bulk-none") {
    selected.clear();
    draw();
  }
});
document.addEventListener("refreshed", () => {
  draw();
  tellTimes(live());
});
