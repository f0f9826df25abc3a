// Pauses between tries that grow, each drawn from around its length, so that many pages don't come back at once.
const BACK_MS = [500, 1000, 2000, 4000, 5000];

export const backoff_ms = (tries) => BACK_MS[Math.min(tries, BACK_MS.length - 1)] * (0.75 + Math.random() / 2);
