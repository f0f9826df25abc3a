// One stream of ticks for all pages of this browser: the page that holds the lock has it, and passes each tick on.
// A browser keeps six connections to one server, so ten pages with a stream each would leave none for anything else.
import { backoff_ms } from "./backoff.js";

const SILENT_MS = 12000; // two beats and a bit
const SESSION_MS = 5000; // between two looks at whether somebody has signed in again

export function follow(hear) {
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(`stoker-ticks-${location.host}`) : null;
  let heard = performance.now();
  let lost = false;
  let over = false; // the session is
  let holds = false; // the lock, and so the stream of all pages
  let source = null;
  let opened = 0;
  let looked = 0;
  let tries = 0;
  let cut = false; // the stream was, and what happened meanwhile wasn't told

  function take(told) {
    const was = lost || told.cut || performance.now() - heard > SILENT_MS;
    heard = performance.now();
    lost = false;
    over ||= told.ended;
    hear.tick(told);
    if (was) hear.back();
  }

  function open() {
    source?.close();
    const mine = (source = new EventSource("/live"));
    opened = performance.now();
    mine.onmessage = (message) => {
      tries = 0;
      const told = { ...JSON.parse(message.data), holds, cut };
      cut = false;
      channel?.postMessage(told);
      take(told);
      if (told.ended) mine.close();
    };
    mine.onerror = () => {
      cut = true;
      // Only of a connection that was cut a browser tries again by itself; of a refusal it doesn't.
      if (mine === source && mine.readyState === EventSource.CLOSED) again();
    };
  }

  async function again() {
    const mine = source;
    mine.close();
    const wait_ms = backoff_ms(tries++);
    await new Promise((done) => setTimeout(done, wait_ms));
    const status = await sessionStatus();
    if (mine !== source || over) return;
    if (status === 401) {
      over = true;
      hear.signedOut();
    } else open();
  }

  async function sessionStatus() {
    looked = performance.now();
    try {
      return (await fetch("/session", { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(SILENT_MS) })).status;
    } catch {
      return 0; // not there yet
    }
  }

  if (channel && navigator.locks) {
    channel.onmessage = (message) => {
      take(message.data);
      if (!holds && message.data.holds) {
        source?.close();
        source = null;
      }
    };
    // Held as long as this page lives; then another page gets it.
    navigator.locks.request("stoker-ticks", () => {
      holds = true;
      open();
      return new Promise(() => {});
    });
  } else {
    open();
  }

  const look = async () => {
    const now = performance.now();
    if (over) {
      // Whoever signs in on another page has all pages back.
      if (!document.hidden && now - looked > SESSION_MS && (await sessionStatus()) === 200) hear.signedIn();
      return;
    }
    const silent_ms = now - heard;
    if (silent_ms < SILENT_MS) return;
    lost = true;
    hear.silent(Math.round(silent_ms / 1000));
    // A connection that died while the machine slept tells nobody, and a page that holds the stream may be frozen:
    // a page that is looked at opens one anew, by itself.
    if (!document.hidden && now - opened > SILENT_MS) open();
  };
  setInterval(look, 1000);
  document.addEventListener("resume", look); // of a page that the browser froze
}
