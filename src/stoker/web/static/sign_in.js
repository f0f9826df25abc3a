// The form for a token. Who comes by a link of another site has a session that the browser didn't send: see first.
const next = () => {
  const wanted = new URLSearchParams(location.search).get("next") || "/";
  // Only a path of this server: `//elsewhere` and `/\elsewhere` would lead away.
  return /^\/(?![/\\])/.test(wanted) ? wanted : "/";
};
const form = document.getElementById("sign-in");
if (form) {
  fetch("/session", { headers: { Accept: "application/json" } }).then((answer) => {
    if (answer.ok) location.replace(next());
  }, () => {});
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fault = document.getElementById("sign-in-fault");
    const button = form.querySelector("button");
    fault.textContent = "";
    button.disabled = true;
    try {
      const answer = await fetch("/login", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ token: form.elements.token.value.trim() }),
      });
      if (answer.ok) {
        location.replace(next());
        return;
      }
      const problem = await answer.json();
      fault.textContent = `${problem.message}: ${problem.hint}`;
    } catch {
      fault.textContent = "The control plane doesn't answer; try again.";
    }
    button.disabled = false;
  });
}
