// Events as they come, each a line; a page that isn't looked at keeps no stream.
import { isOver, tellTimes } from "./page.js";

const KEPT = 500;
const FIELDS_MAX = 10; // of an event, those first that come first; REST has them all
const list = document.getElementById("events");
const said = document.getElementById("events-said");
const find = document.getElementById("event-find");
const pause = document.getElementById("event-pause");
let source = null, after = list.dataset.after, waiting = [];

function words(told) {
  const pairs = [];
  const tell = (fields, within) => {
    for (const [name, value] of Object.entries(fields)) {
      if (pairs.length >= FIELDS_MAX || name === "type" || (name === "job" && !within) || value === "" || value === false || value === null || value === 0) continue;
      if (Array.isArray(value)) value.length && pairs.push(`${name}: ${value.every((each) => typeof each !== "object") ? value.join(", ") : value.length}`);
      else if (typeof value === "object") tell(value, true);
      else pairs.push(`${name}: ${value}`);
    }
  };
  tell(told.event, false);
  const text = pairs.join(" · ");
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
function add(told) {
  const row = document.createElement("li");
  const at = document.createElement("time");
  at.dateTime = told.at;
  at.dataset.mode = "whole";
  const kind = document.createElement("b");
  kind.textContent = String(told.event.type).replaceAll("_", " ");
  const job = told.event.job ?? told.event.spec?.id;
  row.append(at, kind);
  if (job) {
    const link = document.createElement("a");
    link.href = `/jobs/${encodeURIComponent(job)}`;
    link.textContent = `job ${job}`;
    row.append(link, " ");
  }
  const rest = document.createElement("span");
  rest.className = "faint";
  rest.textContent = `${told.by}  ${words(told)}`;
  row.append(rest);
  row.hidden = Boolean(find.value) && !row.textContent.toLowerCase().includes(find.value.toLowerCase());
  list.prepend(row);
  while (list.childElementCount > KEPT) list.lastElementChild.remove();
  tellTimes(row);
}
function open() {
  source?.close();
  source = new EventSource(`/api/v1/events?after=${after}`);
  const hear = (message) => {
    const told = JSON.parse(message.data);
    if (!told.event) return;
    after = told.position;
    if (pause.getAttribute("aria-pressed") === "true") waiting = [...waiting, told].slice(-KEPT);
    else add(told);
    said.textContent = "";
  };
  for (const kind of list.dataset.kinds.split(" ")) source.addEventListener(kind, hear);
  source.addEventListener("lost", () => (said.textContent = "Some events between were missed: more came than are kept."));
  source.onerror = () => {
    if (isOver()) return source.close();
    said.textContent = "The stream was cut; it comes back by itself.";
    if (source.readyState === EventSource.CLOSED) setTimeout(() => !document.hidden && !isOver() && open(), 3000);
  };
}
find.addEventListener("input", () => {
  for (const row of list.children) row.hidden = Boolean(find.value) && !row.textContent.toLowerCase().includes(find.value.toLowerCase());
});
pause.addEventListener("click", () => {
  const on = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(on));
  pause.textContent = on ? "Go on" : "Pause";
  if (!on) for (const told of waiting.splice(0)) add(told);
});
document.addEventListener("back", () => !document.hidden && open());
document.addEventListener("visibilitychange", () => (document.hidden ? source?.close() : open()));
open();
