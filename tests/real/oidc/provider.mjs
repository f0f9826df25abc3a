// An OpenID provider for tests: oidc-provider with its own forms, which take any password.
// node provider.mjs PORT REDIRECT_URI
import Provider from "oidc-provider";

const [port, redirect] = process.argv.slice(2);
const GROUPS = { ada: ["staff", "gpu-admins"], bob: ["staff", "gpu-users"], eve: ["staff"] };
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "stoker", client_secret: "between-the-two", redirect_uris: [redirect], grant_types: ["authorization_code"], response_types: ["code"] }],
  scopes: ["openid", "profile", "groups"],
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  conformIdTokenClaims: false,
  ttl: { IdToken: 86400 }, // a test lets the control plane's clock run ahead of this one
  pkce: { required: () => true },
  cookies: { keys: ["for-tests"] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, groups: GROUPS[id] ?? [] }) }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("READY"));
