// The form for a job, and the same job as command line, REST body and Python.
import { rest, say, span, now } from "./page.js";

const form = document.getElementById("submit");
const text = (name) => form.elements[name].value.trim();
const PLACED = ["gpu_count", "gpu_share", "gpu_memory_mb", "memory_mb", "time_limit", "env"]; // in fields of other names
const KEPT = {}; // fields of a job that is submitted again and that the form has no place for

function body() {
  const made = { ...KEPT };
  const put = (name, value) => {
    if (value !== "" && value !== undefined && !Number.isNaN(value)) made[name] = value;
    else delete made[name];
  };
  const whole = (name) => (text(name) === "" ? undefined : Number(text(name)));
  put("command", text("command"));
  put("name", text("name"));
  const gpus = Number(text("gpus") || 0);
  if (gpus > 0 && gpus < 1) put("gpu_share", gpus);
  else put("gpu_count", gpus || undefined);
  put("tasks", whole("tasks") > 1 ? whole("tasks") : undefined);
  put("gpu_model", text("gpu_model"));
  put("gpu_memory_mb", whole("gpu_memory") ? whole("gpu_memory") * 1024 : undefined);
  put("cpus", whole("cpus"));
  put("memory_mb", whole("memory") ? Math.round(whole("memory") * 1024) : undefined);
  put("time_limit", text("time"));
  put("tenant", text("tenant"));
  put("partition", text("partition"));
  put("priority", text("priority"));
  put("class", text("class") === "batch" ? undefined : text("class"));
  for (const name of ["workdir", "image", "array", "where", "after", "comment"]) put(name, text(name));
  put("retries", whole("retries") || undefined);
  if (form.elements.hold.checked) made.hold = true;
  const env = {};
  for (const line of text("env").split("\n")) {
    const at = line.indexOf("=");
    if (at > 0) env[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  if (Object.keys(env).length) made.env = env;
  return made;
}

const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const size = (mb) => (mb % 1024 ? `${mb}MiB` : `${mb / 1024}GiB`);
const OPTIONS = {
  name: "--name", gpu_count: "--gpus", gpu_share: "--gpus", tasks: "--tasks", gpu_model: "--gpu-model", gpu_memory_mb: "--gpu-memory", cpus: "--cpus", memory_mb: "--memory", time_limit: "--time",
  tenant: "--tenant", partition: "--partition", priority: "--priority", class: "--class", workdir: "--workdir", image: "--image", array: "--array", where: "--where", after: "--after", retries: "--retries", comment: "--comment",
};
function commandLine(job) {
  const words = ["stoker", "submit"];
  for (const [name, option] of Object.entries(OPTIONS)) {
    if (job[name] === undefined) continue;
    words.push(option, quote(name.endsWith("_mb") ? size(job[name]) : String(job[name])));
  }
  for (const [key, value] of Object.entries(job.env ?? {})) words.push("--env", quote(`${key}=${value}`));
  if (job.hold) words.push("--hold");
  const command = Array.isArray(job.command) ? job.command.map(quote).join(" ") : quote(job.command || "COMMAND");
  return `${words.join(" ")} -- ${command}`;
}
const curl = (job) => `curl -X POST ${location.origin}/api/v1/jobs \\\n  -H 'Content-Type: application/json' \\\n  -H "Authorization: Bearer $STOKER_TOKEN" \\\n  -d ${quote(JSON.stringify(job))}`;
function python(job) {
  // JSON's strings are Python's; `class` is a word of Python's own.
  const value = (each) => (each === true ? "True" : typeof each === "object" && !Array.isArray(each) ? `{${Object.entries(each).map(([key, one]) => `${JSON.stringify(key)}: ${value(one)}`).join(", ")}}` : JSON.stringify(each));
  const fields = Object.entries(job).map(([name, each]) => `    ${name === "class" ? "job_class" : name}=${value(each)},`);
  return `from stoker.wire.client import Client, JobBody\n\nwith Client(${JSON.stringify(location.origin)}) as client:\n    job = client.submit(JobBody(\n${fields.map((each) => `    ${each}`).join("\n")}\n    ))\n    print(job.id)`;
}

function show() {
  const job = body();
  document.getElementById("as-cli").textContent = commandLine(job);
  document.getElementById("as-rest").textContent = curl(job);
  document.getElementById("as-python").textContent = python(job);
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
  const again = new URLSearchParams(location.search).get("again") && sessionStorage.getItem("stoker-again");
  if (again) {
    const job = JSON.parse(again);
    const set = (name, value) => {
      if (value === undefined || value === null) return;
      const field = form.elements[name];
      if (field.tagName === "SELECT" && ![...field.options].some((each) => each.value === String(value))) field.add(new Option(value));
      field.value = value;
    };
    set("command", Array.isArray(job.command) ? job.command.map(quote).join(" ") : job.command);
    set("gpus", job.gpu_share ?? job.gpu_count ?? 0);
    set("gpu_memory", job.gpu_memory_mb && job.gpu_memory_mb / 1024);
    set("memory", job.memory_mb && job.memory_mb / 1024);
    set("time", job.time_limit);
    for (const name of ["name", "tasks", "gpu_model", "cpus", "tenant", "partition", "priority", "class", "workdir", "image", "array", "where", "retries", "comment"]) set(name, job[name]);
    for (const [name, value] of Object.entries(job)) if (!form.elements[name] && !PLACED.includes(name)) KEPT[name] = value;
    set("env", Object.entries(job.env ?? {}).map(([key, value]) => `${key}=${value}`).join("\n"));
  }
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
