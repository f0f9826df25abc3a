// Takes a code to the command that waits on this machine's loopback.
import { rest } from "./page.js";

document.getElementById("yes")?.addEventListener("click", async (event) => {
  const given = new URLSearchParams(location.search);
  event.target.disabled = true;
  try {
    const { code } = await rest("POST", "/command-login", { challenge: given.get("challenge") });
    location.assign(`http://127.0.0.1:${Number(given.get("port"))}/?${new URLSearchParams({ code, state: given.get("state") ?? "" })}`);
  } catch (fault) {
    document.getElementById("command-fault").textContent = fault.message;
    event.target.disabled = false;
  }
});
