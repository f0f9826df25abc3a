// What every page does: it stays alive, tells times as here, listens to keys, and asks REST for what is to be changed.
import { follow } from "./ticks.js";

const meta = document.querySelector("meta[name=stoker]").dataset;
export const csrf = meta.csrf;
const EACH_S = 1000; // of busy minutes one refresh a second; the first one comes at once
const ANSWER_MS_MAX = 30000;
const PART_MS_MAX = 15000; // a connection that died while the machine slept tells nobody
const CLOCK_MS_MAX = 60000; // that two clocks may differ unsaid
let ahead_ms = Date.parse(meta.now) - Date.now(); // of the control plane's clock before the browser's

// -- times ------------------------------------------------------------------------------------------------------------

const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

export function now() {
  return Date.now() + ahead_ms;
}

export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function tellTimes(root = document) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = Date.parse(each.dateTime);
    if (Number.isNaN(at)) continue;
    const past = now() - at;
    const mode = each.dataset.mode;
    let text;
    if (mode === "for") text = span(past);
    else if (mode === "at") text = Math.abs(past) < 72000000 ? clock.format(at) : day.format(at);
    else if (mode === "whole") text = whole.format(at);
    else if (past < -1000) text = `in ${span(-past)}`;
    else text = past < 86400000 ? `${span(past)} ago` : day.format(at);
    if (each.textContent !== text) each.textContent = text;
    const title = whole.format(at);
    if (each.title !== title) each.title = title;
  }
  tellSentences(root === document ? document.body : root);
}

// Reasons and notes are sentences, in which servers write times in UTC.
const instant = /\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC/g;

function tellSentences(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (!text.data.includes(" UTC") || text.parentElement.closest("pre, code, textarea, script")) continue;
    const told = text.data.replace(instant, (each) => whole.format(Date.parse(each.replace(" UTC", "Z").replace(" ", "T"))));
    if (told !== text.data) text.data = told;
  }
}

// -- canvases -------------------------------------------------------------------------------------------------------------

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The pen of an empty canvas, as wide as its place and so high, in units of the page.
export function penOf(canvas, height) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth || 600;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return pen;
}

// -- what is said -------------------------------------------------------------------------------------------------------

let saying;
export function say(text, bad = false) {
  const said = document.getElementById("said");
  said.textContent = text;
  said.classList.toggle("bad", bad);
  said.classList.add("shown");
  clearTimeout(saying);
  saying = setTimeout(() => said.classList.remove("shown"), bad ? 12000 : 4000);
}

// What is wrong with the page, by its kind; the first that there is stands in its line.
const KINDS = ["session", "cluster", "version", "silent", "part", "clock"];
const wrong = new Map();
function stale(kind, text, href) {
  if ((wrong.get(kind)?.text ?? "") === text) return;
  text ? wrong.set(kind, { text, href }) : wrong.delete(kind);
  const shown = KINDS.find((each) => wrong.has(each));
  const told = wrong.get(shown);
  const line = document.getElementById("stale");
  line.hidden = !told;
  line.textContent = told?.text ?? "";
  line.classList.toggle("warn", shown !== "clock");
  if (told?.href) {
    const link = document.createElement("a");
    link.href = told.href;
    link.textContent = told.href === location.href ? "Reload" : "Sign in";
    line.append(" ", link);
  }
  document.getElementById("pulse")?.classList.toggle("off", Boolean(told) && shown !== "clock");
}

// -- REST ---------------------------------------------------------------------------------------------------------------

export async function rest(method, path, body, headers = {}) {
  // Returns the answer; throws an Error whose message is the refusal's.
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: {
        Accept: "application/json",
        ...(method === "GET" ? {} : { "Stoker-CSRF": csrf }),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MS_MAX),
    });
  } catch {
    throw new Error("the control plane doesn't answer; try again in a moment");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    if (answer.status === 401) signedOut();
    const fault = new Error(told.message ? `${told.message}. ${told.hint}` : `refused with status ${answer.status}`);
    fault.code = told.code;
    throw fault;
  }
  return told;
}

// -- live parts -----------------------------------------------------------------------------------------------------------

const parts = () => document.querySelectorAll("[data-live]");
const waiting = new WeakMap(); // of each live part: when it was asked for, whether it is, whether it is to be again

export async function refresh(part) {
  const state = waiting.get(part) ?? { at: 0, busy: false, again: false };
  waiting.set(part, state);
  if (state.busy) {
    state.again = true;
    return;
  }
  if (wrong.has("session")) return;
  if (document.hidden) {
    state.again = true;
    return;
  }
  const wait_ms = state.at + EACH_S - performance.now();
  state.busy = true;
  state.again = false;
  if (wait_ms > 0) await new Promise((done) => setTimeout(done, wait_ms));
  state.at = performance.now();
  state.stop = new AbortController();
  const late = setTimeout(() => state.stop.abort(), PART_MS_MAX);
  try {
    const answer = await fetch(part.dataset.src || location.href, { headers: { "HX-Request": "true", Accept: "text/html" }, signal: state.stop.signal });
    if (answer.ok) {
      const text = await answer.text();
      await htmx.swap({ sourceElement: part, target: part, text, swap: "outerMorph" });
      tellTimes(part);
      part.dispatchEvent(new CustomEvent("refreshed", { bubbles: true }));
      if (state.fault) stale("part", "");
      state.fault = false;
    } else if (answer.status === 401) {
      signedOut();
    } else if (answer.status !== 503 && answer.status !== 429) {
      state.fault = true;
      stale("part", `This can't be shown any more: ${await answer.text()}.`);
    }
  } catch {
    // The stream notices too, and says it.
  }
  clearTimeout(late);
  state.busy = false;
  if (state.again) refresh(part);
}

export function refreshAll(topics) {
  for (const part of parts()) {
    const wanted = part.dataset.live.split(" ");
    if (!topics || topics.some((each) => wanted.includes(each))) refresh(part);
  }
}

export const isOver = () => wrong.has("session");

function signedOut() {
  stale("session", "Your session is over: what you see may be old. This page goes on as it is once you have signed in.", `/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}

function tellClock() {
  const off_ms = Math.abs(ahead_ms);
  stale("clock", off_ms > CLOCK_MS_MAX ? `This machine's clock is ${span(off_ms)} ${ahead_ms > 0 ? "behind" : "ahead of"} the control plane's. Ages are told by the control plane's.` : "");
}

follow({
  tick(told) {
    ahead_ms = Date.parse(told.now) - Date.now();
    stale("silent", "");
    if (told.ended) signedOut();
    stale("version", told.version === meta.version ? "" : `Stoker is now version ${told.version}, and this page of ${meta.version}.`, location.href);
    stale("cluster", told.cluster === meta.cluster ? "" : "Another cluster answers here now than the one that this page is of.", location.href);
    tellClock();
    if (told.topics) refreshAll(told.topics);
    document.dispatchEvent(new CustomEvent("tick", { detail: told }));
  },
  back() {
    // Other connections died with the stream: what is asked over one is asked anew.
    refreshAll();
    for (const part of parts()) waiting.get(part)?.stop?.abort();
    document.dispatchEvent(new CustomEvent("back"));
  },
  silent(s) {
    stale("silent", `No word from the control plane for ${s} s: what you see may be old. It comes back by itself.`);
  },
  signedOut,
  signedIn() {
    location.reload(); // the page of the new session
  },
});

setInterval(() => {
  if (document.hidden) return;
  tellTimes();
  for (const part of parts()) {
    const every_s = Number(part.dataset.every || 0);
    const state = waiting.get(part);
    if (every_s && performance.now() - (state?.at ?? 0) > every_s * 1000) refresh(part);
  }
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refreshAll();
});

// -- clicks -----------------------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const copied = event.target.closest("[data-copy]");
  if (copied) {
    try {
      await navigator.clipboard.writeText(copied.dataset.copy);
      say("Copied");
    } catch {
      say(copied.dataset.copy); // no clipboard without TLS: it can be taken from here
    }
  }
  const posts = event.target.closest("[data-post]");
  if (posts) {
    try {
      await rest("POST", posts.dataset.post);
      sessionStorage.clear(); // what was typed is nobody else's
      location.assign(posts.dataset.next || location.href);
    } catch (fault) {
      say(fault.message, true);
    }
  }
  if (event.target.id === "show-keys") document.getElementById("keys").showModal();
});

// -- questions ----------------------------------------------------------------------------------------------------------------

export function question({ title, lines = [], text, field, fields, yes = "Yes", danger = false }) {
  // Resolves to the text of the field (or "") on yes, to null on no; of several `fields` to their texts by name.
  const dialog = document.getElementById("ask");
  dialog.replaceChildren();
  const form = document.createElement("form");
  form.method = "dialog";
  const head = document.createElement("h2");
  head.textContent = title;
  form.append(head);
  if (text) {
    const said = document.createElement("p");
    said.textContent = text;
    form.append(said);
  }
  if (lines.length) {
    const list = document.createElement("ul");
    list.className = "preview";
    for (const each of lines) {
      const row = document.createElement("li");
      for (const text of [each].flat()) {
        const part = document.createElement("span");
        part.className = "apart";
        part.textContent = text;
        row.append(part, " ");
      }
      list.append(row);
    }
    form.append(list);
  }
  const inputs = (fields ?? (field ? [{ name: "answer", ...field }] : [])).map((each) => {
    const label = document.createElement("label");
    label.textContent = each.label;
    const made = document.createElement("input");
    Object.assign(made, { name: each.name, value: each.value ?? "", required: Boolean(each.required), maxLength: 4096 });
    label.append(made);
    form.append(label);
    return made;
  });
  const input = inputs[0];
  const buttons = document.createElement("p");
  buttons.className = "buttons";
  const no = document.createElement("button");
  Object.assign(no, { type: "button", textContent: "Leave it" });
  no.addEventListener("click", () => dialog.close("no"));
  const ok = document.createElement("button");
  Object.assign(ok, { value: "yes", textContent: yes, className: danger ? "danger" : "primary" });
  buttons.append(no, ok);
  form.append(buttons);
  dialog.append(form);
  dialog.returnValue = "no";
  dialog.setAttribute("aria-label", title);
  dialog.showModal();
  (input ?? ok).focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue !== "yes" ? null : fields ? Object.fromEntries(inputs.map((each) => [each.name, each.value.trim()])) : (input?.value ?? "")), { once: true });
  });
}

// -- keys -----------------------------------------------------------------------------------------------------------------------

const PLACES = { c: "/", q: "/queue", s: "/submit", n: "/nodes", t: "/timeline", a: "/activity", u: "/tenants", p: "/control", o: "/clusters" };
let goes = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, .terminal, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const key = event.key;
  if (goes) {
    goes = false;
    if (PLACES[key]) location.assign(PLACES[key]);
    return;
  }
  if (key === "g") goes = true;
  else if (key === "/") {
    event.preventDefault();
    document.querySelector(".find input")?.focus();
  } else if (key === "?") document.getElementById("keys").showModal();
  else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "x") document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
});

function step(by) {
  const links = [...document.querySelectorAll("main tbody tr a.row")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement?.closest("tr")?.querySelector("a.row"));
  links[Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

tellTimes();
// Parts that were sent empty, since they take longer than the page.
for (const part of document.querySelectorAll("[data-empty]")) refresh(part);
// On a phone the pages are a strip that is moved sideways.
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
