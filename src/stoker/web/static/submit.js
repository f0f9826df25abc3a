// The form for a job, and the same job as command line, REST body and Python.
import { commandLine, curl, python, shellLine, shellWords } from "./job_forms.js";
import { now, rest, say, span } from "./page.js";

const form = document.getElementById("submit");
const text = (name) => form.elements[name].value.trim();
const GIB_MB = 1024;
const DRAFT = "stoker-draft";
const PLACED = ["command", "gpu_count", "gpu_share", "gpu_memory_mb", "memory_mb", "time_limit", "env", "hold"]; // in fields of other names, or of other kinds
const KEPT = {}; // fields of a job that is submitted again and that the form has no place for
const KEPT_ENV = {}; // its variables of several lines
let words = null; // of its command, where that was a list
const needsToken = Boolean(form?.dataset.needsToken);

// A command that was a list stays one while it reads as one; a script and an image want one.
function command() {
  const typed = text("command");
  if (words === null) return typed;
  if (typed === shellLine(words)) return words;
  return shellWords(typed) ?? typed;
}

function variables() {
  const env = { ...KEPT_ENV };
  let fault = "";
  for (const line of form.elements.env.value.split("\n")) {
    const at = line.indexOf("=");
    if (at > 0) env[line.slice(0, at).trim()] = line.slice(at + 1);
    else if (line.trim()) fault = `"${line.trim().slice(0, 40)}" is no KEY=value`;
  }
  form.elements.env.setCustomValidity(fault);
  return env;
}

function body() {
  const made = { ...KEPT };
  const put = (name, value) => {
    if (value !== "" && value !== undefined && !Number.isNaN(value)) made[name] = value;
    else delete made[name];
  };
  const whole = (name) => (text(name) === "" ? undefined : Number(text(name)));
  put("command", command());
  put("name", text("name"));
  const gpus = Number(text("gpus") || 0);
  if (gpus > 0 && gpus < 1) put("gpu_share", gpus);
  else put("gpu_count", gpus || undefined);
  put("tasks", whole("tasks") > 1 ? whole("tasks") : undefined);
  put("gpu_model", text("gpu_model"));
  put("gpu_memory_mb", whole("gpu_memory") ? Math.round(whole("gpu_memory") * GIB_MB) : undefined);
  put("cpus", whole("cpus"));
  put("memory_mb", whole("memory") ? Math.round(whole("memory") * GIB_MB) : undefined);
  put("time_limit", text("time"));
  put("tenant", text("tenant"));
  put("partition", text("partition"));
  put("priority", text("priority"));
  put("class", text("class") === "batch" ? undefined : text("class"));
  for (const name of ["workdir", "image", "array", "where", "after", "comment"]) put(name, text(name));
  put("retries", whole("retries") || undefined);
  if (form.elements.hold.checked) made.hold = true;
  const env = variables();
  if (Object.keys(env).length) made.env = env;
  return made;
}

function show() {
  const job = body();
  document.getElementById("as-cli").textContent = commandLine(job);
  document.getElementById("as-rest").textContent = curl(job, needsToken);
  document.getElementById("as-python").textContent = python(job, needsToken);
}

// What would become of it, asked a moment after the last key: of a job that isn't there yet.
let trying = 0, asked = "";
const OUTCOMES = { starts: "good", preempts: "wait", waits: "wait", refused: "bad", unknown: "" };
async function tryIt(force = false) {
  const job = body();
  const text = JSON.stringify(job);
  if (!job.command || document.hidden || (text === asked && !force)) return;
  asked = text;
  const place = document.getElementById("become");
  const hint = document.getElementById("become-hint");
  const wrong = [...form.elements].find((each) => each.willValidate && !each.checkValidity());
  if (wrong) {
    place.className = "become bad";
    place.textContent = `${wrong.closest("label")?.firstChild.textContent.trim() ?? wrong.name}: ${wrong.validationMessage}`;
    hint.textContent = "";
    return;
  }
  try {
    const told = await rest("POST", "/api/v1/jobs/preview", job);
    if (text !== asked) return;
    place.className = `become ${OUTCOMES[told.outcome]}`;
    const by = told.starts_by ? ` It would start in ${span(Date.parse(told.starts_by) - now())} at the latest, on ${told.nodes.join(", ")}.` : "";
    place.textContent = `${told.outcome === "waits" ? "It would wait: " : told.outcome === "refused" ? "It would be refused: " : ""}${told.message}.${by}`;
    hint.textContent = told.hint ?? "";
  } catch (fault) {
    place.className = "become";
    place.textContent = fault.message;
    hint.textContent = "";
  }
}
function trySoon() {
  clearTimeout(trying);
  trying = setTimeout(tryIt, 500);
}

if (form) {
  const set = (name, value) => {
    if (value === undefined || value === null) return;
    const field = form.elements[name];
    if (field.tagName === "SELECT" && ![...field.options].some((each) => each.value === String(value))) field.add(new Option(value));
    field.value = value;
  };
  if (form.dataset.again) {
    const job = JSON.parse(form.dataset.again);
    if (Array.isArray(job.command)) words = job.command;
    set("command", shellLine(job.command));
    set("gpus", job.gpu_share ?? job.gpu_count ?? 0);
    set("gpu_memory", job.gpu_memory_mb && job.gpu_memory_mb / GIB_MB);
    set("memory", job.memory_mb && job.memory_mb / GIB_MB);
    set("time", job.time_limit);
    for (const name of ["name", "tasks", "gpu_model", "cpus", "tenant", "partition", "priority", "class", "workdir", "image", "array", "where", "retries", "comment"]) set(name, job[name]);
    for (const [name, value] of Object.entries(job)) if (!form.elements[name] && !PLACED.includes(name)) KEPT[name] = value;
    const several = ([key, value]) => value.includes("\n") || key.trim() !== key;
    const env = Object.entries(job.env ?? {});
    Object.assign(KEPT_ENV, Object.fromEntries(env.filter(several)));
    set("env", env.filter((each) => !several(each)).map(([key, value]) => `${key}=${value}`).join("\n"));
    const kept = [...Object.keys(KEPT), ...Object.keys(KEPT_ENV)];
    const note = document.getElementById("again-kept");
    note.hidden = !kept.length;
    note.textContent = `Kept of the job as it was: ${kept.join(", ").replaceAll("_", " ")}.`;
  }
  // What was typed is here again after a reload, and after signing in anew.
  const draft = `${DRAFT}${location.search}`;
  for (const [name, value] of Object.entries(JSON.parse(sessionStorage.getItem(draft) ?? "{}"))) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = value;
    else if (field) set(name, value);
  }
  form.addEventListener("input", () => {
    const typed = [...form.elements].filter((each) => each.name).map((each) => [each.name, each.type === "checkbox" ? each.checked : each.value]);
    sessionStorage.setItem(draft, JSON.stringify(Object.fromEntries(typed)));
  });
  document.getElementById("submit-clear").addEventListener("click", () => {
    for (const each of [draft, DRAFT]) sessionStorage.removeItem(each);
  });
  form.addEventListener("input", () => {
    show();
    trySoon();
  });
  show();
  trySoon();
  setInterval(() => tryIt(true), 5000);
  // The same click twice, or a lost answer, is one job.
  let key = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
  form.addEventListener("input", () => (key = crypto.randomUUID?.() ?? String(Math.random()).slice(2)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fault = document.getElementById("submit-fault");
    const button = form.querySelector("button.primary");
    fault.textContent = "";
    button.disabled = true;
    try {
      const job = await rest("POST", "/api/v1/jobs", body(), { "Idempotency-Key": key });
      sessionStorage.removeItem(draft);
      location.assign(`/jobs/${encodeURIComponent(job.id)}`);
    } catch (refused) {
      fault.textContent = refused.message;
      button.disabled = false;
    }
  });
  document.addEventListener("click", async (event) => {
    const of = event.target.closest("[data-copy-of]");
    if (!of) return;
    try {
      await navigator.clipboard.writeText(document.getElementById(of.dataset.copyOf).textContent);
      say("Copied");
    } catch {
      say("Select the text and copy it: there is no clipboard without TLS", true);
    }
  });
}
