// Orders on jobs, as REST has them; one after the other for many, with what is meant shown before.
import { question, refreshAll, rest, say } from "./page.js";

const REQUESTS = {
  cancel: (id) => ["DELETE", `/api/v1/jobs/${encodeURIComponent(id)}`],
  hold: (id) => ["POST", `/api/v1/jobs/${encodeURIComponent(id)}/hold`],
  release: (id) => ["POST", `/api/v1/jobs/${encodeURIComponent(id)}/release`],
  requeue: (id) => ["POST", `/api/v1/jobs/${encodeURIComponent(id)}/requeue`],
};
// States for which an order can be meant; REST has the last word.
const MEANT = {
  cancel: ["pending", "held", "starting", "running", "stopping"],
  hold: ["pending"],
  release: ["held"],
  requeue: ["running", "succeeded", "failed", "cancelled", "timeout", "out_of_memory", "node_failed", "starting"],
};
const SHOWN_MAX = 300; // of what is meant, one by one
const WORD = { cancel: "Cancel", hold: "Hold", release: "Release", requeue: "Requeue" };

export async function order(name, jobs) {
  // `jobs`: of each its id, name, state and user. Resolves to whether it was done.
  const meant = jobs.filter((job) => MEANT[name].includes(job.state));
  const left = jobs.length - meant.length;
  if (!meant.length) {
    say(`None of these can be told to ${name}: ${jobs.map((job) => `${job.id} is ${job.state}`).slice(0, 3).join(", ")}`, true);
    return false;
  }
  const answer = await question({
    title: meant.length === 1 ? `${WORD[name]} job ${meant[0].id}?` : `${WORD[name]} ${meant.length} jobs?`,
    text: left ? `${left} of the selected stay as they are: their state doesn't allow it.` : "",
    lines: [...meant.slice(0, SHOWN_MAX).map((job) => [job.id, job.name || "(no name)", `${job.state}, ${job.user}`]), ...(meant.length > SHOWN_MAX ? [`and ${meant.length - SHOWN_MAX} more`] : [])],
    yes: meant.length === 1 ? `${WORD[name]} it` : `${WORD[name]} ${meant.length} jobs`,
    danger: name === "cancel",
  });
  if (answer === null) return false;
  const faults = [];
  let done = 0;
  for (const job of meant) {
    for (let tries = 0; ; tries += 1) {
      try {
        await rest(...REQUESTS[name](job.id));
      } catch (fault) {
        if (fault.code === "rate_limited" && tries < 20) {
          await new Promise((next) => setTimeout(next, 500));
          continue;
        }
        faults.push(`${job.id}: ${fault.message}`);
      }
      break;
    }
    done += 1;
    if (meant.length > 20 && done % 10 === 0) say(`${done} of ${meant.length}…`);
  }
  if (faults.length) say(`${meant.length - faults.length} done, ${faults.length} refused. ${faults[0]}`, true);
  else say(meant.length === 1 ? `Job ${meant[0].id}: ${name} was told` : `${meant.length} jobs: ${name} was told`);
  refreshAll();
  return true;
}
