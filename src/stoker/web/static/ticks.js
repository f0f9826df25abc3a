// One stream of ticks for all pages of this browser: the page that holds the lock has it, and passes each tick on.
// A browser keeps six connections to one server, so ten pages with a stream each would leave none for anything else.
const SILENT_MS = 12000; // two beats and a bit
const BACK_MS = [500, 1000, 2000, 4000, 5000];

export function follow(hear) {
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(`stoker-ticks-${location.host}`) : null;
  let heard = performance.now();
  let lost = false;
  let source = null;
  let tries = 0;

  function take(told) {
    heard = performance.now();
    const was = lost;
    lost = false;
    hear.tick(told);
    if (was) hear.back();
  }

  function open() {
    source = new EventSource("/live");
    source.onmessage = (message) => {
      tries = 0;
      const told = JSON.parse(message.data);
      channel?.postMessage(told);
      take(told);
      if (told.ended) {
        source.close();
      }
    };
    source.onerror = () => {
      // Only of a connection that was cut a browser tries again by itself; of a refusal it doesn't.
      if (source.readyState === EventSource.CLOSED) again();
    };
  }

  async function again() {
    source.close();
    const wait_ms = BACK_MS[Math.min(tries++, BACK_MS.length - 1)];
    await new Promise((done) => setTimeout(done, wait_ms * (0.75 + Math.random() / 2)));
    try {
      const answer = await fetch("/session", { headers: { Accept: "application/json" } });
      if (answer.status === 401) {
        hear.signedOut();
        return;
      }
    } catch {
      // not there yet
    }
    open();
  }

  if (channel && navigator.locks) {
    channel.onmessage = (message) => take(message.data);
    // Held as long as this page lives; then another page gets it.
    navigator.locks.request("stoker-ticks", () => {
      open();
      return new Promise(() => {});
    });
  } else {
    open();
  }

  setInterval(() => {
    const silent_ms = performance.now() - heard;
    if (silent_ms > SILENT_MS) {
      lost = true;
      hear.silent(Math.round(silent_ms / 1000));
    }
  }, 1000);
}
