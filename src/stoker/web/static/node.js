// Nodes: drain with a reason, and resume.
import { hourOnClick } from "./hour.js";
import { question, refreshAll, rest, say } from "./page.js";

hourOnClick();
document.addEventListener("click", async (event) => {
  const drain = event.target.closest("[data-drain]");
  const resume = event.target.closest("[data-resume]");
  if (!drain && !resume) return;
  const name = (drain ?? resume).dataset.drain ?? resume.dataset.resume;
  const reason = await question(
    drain
      ? { title: `Drain ${name}?`, text: "It gets no new work; what runs there goes on.", field: { label: "Reason", required: true }, yes: "Drain it" }
      : { title: `Resume ${name}?`, text: "It gets work again.", yes: "Resume it" },
  );
  if (reason === null) return;
  try {
    await rest("POST", `/api/v1/nodes/${encodeURIComponent(name)}/${drain ? "drain" : "resume"}`, drain ? { reason } : undefined);
    say(`${name}: ${drain ? "drains" : "takes work again"}`);
  } catch (fault) {
    say(fault.message, true);
  }
  refreshAll();
});
