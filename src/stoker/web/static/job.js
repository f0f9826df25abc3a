// One job: what may be done with it, its output, and a terminal in it.
import { question, refreshAll, rest, say } from "./page.js";
import { order } from "./orders.js";
import { hourOnClick } from "./hour.js";
import { Output } from "./output.js";

const job = document.getElementById("job");
const live = () => document.getElementById("live");

const LABELS = {
  name: "Name", priority: "Priority: a number, or low, normal, high", time_limit: "Time limit from its start, such as 2h or 90m", comment: "Comment", gpu_count: "GPUs per task", tasks: "Tasks",
  cpus: "CPUs per task", memory_mb: "Memory per task in MiB, 0 = no limit", gpu_model: "GPU model, empty = any", partition: "Partition", where: "Where, such as zone=a",
};
const NUMBERS = ["gpu_count", "tasks", "cpus", "memory_mb"];

if (job) {
  const id = job.dataset.job;
  const about = () => ({ id, name: job.dataset.name, user: job.dataset.user, state: live().dataset.state });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-order]");
    if (button) order(button.dataset.order, [about()]);
    const change = event.target.closest("[data-change]");
    if (change) {
      const yes = await question({ title: `Change job ${id}?`, text: change.dataset.words, yes: "Change it" });
      if (yes !== null) patch(JSON.parse(change.dataset.change));
    }
    if (event.target.id === "change") {
      const was = JSON.parse(event.target.dataset.now);
      const fields = Object.entries(was).map(([name, value]) => ({ name, value, label: LABELS[name] }));
      const told = await question({ title: `Change job ${id}`, text: "What stays as it is isn't sent.", fields, yes: "Change it" });
      const changed = Object.entries(told ?? {}).filter(([name, value]) => value !== was[name]);
      if (changed.length) patch(Object.fromEntries(changed.map(([name, value]) => [name, NUMBERS.includes(name) ? Number(value) : value])));
    }
    // The link works by itself; what was typed there before is of another try.
    if (event.target.id === "again") sessionStorage.removeItem(`stoker-draft${event.target.search}`);
  });
  async function patch(body) {
    try {
      await rest("PATCH", `/api/v1/jobs/${encodeURIComponent(id)}`, body);
      say(`Job ${id} was changed`);
      refreshAll();
    } catch (fault) {
      say(fault.message, true);
    }
  }

  hourOnClick();

  // -- output -----------------------------------------------------------------------------------------------------------

  const log = document.getElementById("log");
  if (log) {
    const rank = document.getElementById("log-rank");
    const attempt = document.getElementById("log-attempt");
    const output = new Output(log, document.getElementById("log-about"));
    const fill = (select, values, labels) => {
      const kept = select.value;
      if (select.options.length === values.length) return;
      select.replaceChildren(...values.map((value, at) => new Option(labels[at], value)));
      if (values.includes(kept)) select.value = kept;
    };
    const choices = () => {
      const { attempts, ranks } = live().dataset;
      const numbers = [...Array(Number(ranks) || 1).keys()].map(String);
      const several = numbers.length > 1;
      fill(rank, several ? ["all", ...numbers] : numbers, several ? ["all", ...numbers] : numbers);
      const tries = ["0", ...[...Array(Number(attempts)).keys()].map((at) => String(at + 1)).reverse()];
      fill(attempt, tries, tries.map((each) => (each === "0" ? "newest" : each)));
    };
    const show = () => {
      offer();
      output.open(id, { rank: rank.value || "0", attempt: Number(attempt.value) || 0 });
    };
    const offer = () => {
      const query = new URLSearchParams({ rank: rank.value || "0" });
      if (attempt.value && attempt.value !== "0") query.set("attempt", attempt.value);
      const whole = document.getElementById("log-whole");
      whole.hidden = query.get("rank") === "all" || !output.attempts;
      // Of a job that has ended all of it; of one that goes on it would never end.
      const part = live().dataset.final ? "follow=true&offset=0" : "limit=1048576&offset=-1048576";
      whole.href = `/api/v1/jobs/${encodeURIComponent(id)}/logs?${query}&${part}`;
      whole.textContent = live().dataset.final ? "Download" : "Download the end";
      whole.download = `job-${id}-rank-${rank.value || 0}.log`;
    };
    const know = () => output.know({ attempts: Number(live().dataset.attempts), ranks: Number(live().dataset.ranks) || 1 });
    choices();
    know();
    rank.addEventListener("change", show);
    attempt.addEventListener("change", show);
    document.getElementById("log-find").addEventListener("input", (event) => output.find(event.target.value));
    document.getElementById("log-follow").addEventListener("change", (event) => output.follow(event.target.checked));
    let seen = "";
    const look = () => {
      const now = `${output.attempts > 0}`;
      if (now === seen) return;
      seen = now;
      if (output.attempts) show();
      else output.say("It has written nothing yet: it hasn't started.");
      offer();
    };
    document.addEventListener("refreshed", () => {
      choices();
      know();
      look();
      offer();
    });
    look();
  }

  // -- terminal -----------------------------------------------------------------------------------------------------------

  const place = document.getElementById("terminal");
  document.addEventListener("refreshed", () => {
    const card = document.getElementById("terminal-card");
    // One that is open says by itself how it ended.
    if (card && place.hidden) card.hidden = live().dataset.state !== "running";
  });
  for (const [button, kind] of [["terminal-open", "exec"], ["terminal-attach", "attach"]]) {
    document.getElementById(button)?.addEventListener("click", async () => {
      const { openTerminal } = await import("./terminal.js");
      const command = document.getElementById("terminal-command").value.trim();
      const chosen = document.getElementById("log-rank").value;
      const rank = chosen === "all" ? "0" : chosen || "0";
      openTerminal({ kind, id, rank, command, place, said: document.getElementById("terminal-said"), scripts: [job.dataset.terminal, job.dataset.fit] });
    });
  }
}
