// One job as a command line, a REST body and Python that submit the same: what a body has, each of them has.

export const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const size = (mb) => (mb % 1024 ? `${mb}MiB` : `${mb / 1024}GiB`);
const list = (value) => (Array.isArray(value) ? value : [value]);
const OPTIONS = {
  name: "--name", gpu_count: "--gpus", gpu_share: "--gpus", tasks: "--tasks", gpu_model: "--gpu-model", gpu_memory_mb: "--gpu-memory", cpus: "--cpus", memory_mb: "--memory",
  tasks_per_node: "--tasks-per-node", partition: "--partition", where: "--where", exclude: "--exclude", tolerate: "--tolerate", tenant: "--tenant", class: "--class", priority: "--priority",
  time_limit: "--time", retries: "--retries", comment: "--comment", lost_after: "--lost-after", checkpoint: "--checkpoint", signal: "--signal", array: "--array", after: "--after",
  notify: "--notify", notify_to: "--notify-to", visible: "--visible", image: "--image", mounts: "--mount", shm_mb: "--shm-size", network: "--network", entrypoint: "--entrypoint",
  workdir: "--workdir", output: "--output", error: "--error",
};
const FLAGS = { requeue: { false: "--no-requeue" }, preemptible: { true: "--preemptible" }, hold: { true: "--hold" }, tty: { true: "-it" }, detached: { true: "--detach" } };

// A word of a shell, and of the words of a list.
export const shellLine = (command) => (Array.isArray(command) ? command.map(quote).join(" ") : command);

// The words of a line as a shell reads them; null where it would do more than that with it.
export function shellWords(line) {
  const words = [];
  const piece = /\s+|'([^']*)'|"((?:[^"\\$`]|\\["\\$`])*)"|\\([^\n])|([^\s'"\\$`|&;<>()*?[\]{}~#!]+)/gy;
  let word = null;
  for (let at = 0; at < line.length; at = piece.lastIndex) {
    piece.lastIndex = at;
    const found = piece.exec(line);
    if (!found) return null;
    const text = found[1] ?? found[2]?.replace(/\\(.)/g, "$1") ?? found[3] ?? found[4];
    if (text !== undefined) word = (word ?? "") + text;
    else if (word !== null) {
      words.push(word);
      word = null;
    }
  }
  if (word !== null) words.push(word);
  return words;
}

function commandWords(command) {
  if (Array.isArray(command)) return command.map(quote).join(" ");
  if (!command) return "COMMAND";
  // One argument is a line for the shell if there is a blank in it.
  return quote(/\s/.test(command) || /^[\w./-]+$/.test(command) ? command : `${command} `);
}

export function commandLine(job) {
  // The environment and the folder of whoever types it aren't the job's: --export NONE.
  const words = ["stoker submit", "--export NONE"];
  const put = (option, value) => words.push(String(value).startsWith("-") ? quote(`${option}=${value}`) : `${option} ${quote(String(value))}`);
  for (const [name, option] of Object.entries(OPTIONS)) {
    if (job[name] === undefined) continue;
    for (const value of ["notify", "after", "exclude"].includes(name) ? [list(job[name]).join(",")] : list(job[name])) put(option, name.endsWith("_mb") ? size(value) : value);
  }
  for (const [key, value] of Object.entries(job.labels ?? {})) put("--label", `${key}=${value}`);
  for (const [variable, name] of Object.entries(job.secrets ?? {})) put("--secret", `${name}=${variable}`);
  for (const [key, value] of Object.entries(job.env ?? {})) put("--env", `${key}=${value}`);
  for (const [name, flags] of Object.entries(FLAGS)) if (flags[job[name]]) words.push(flags[job[name]]);
  const user = job.user ? `# as your own account: only REST and Python name another, here ${job.user}\n` : "";
  if (job.script === undefined) return `${user}${words.join(" ")} -- ${commandWords(job.command)}`;
  let end = "STOKER";
  while (job.script.split("\n").includes(end)) end += "_";
  const text = job.script.endsWith("\n") ? job.script : `${job.script}\n`;
  const [name, ...more] = list(job.command);
  const path = /[/]/.test(name) ? name : `./${name}`;
  return `${user}cat > ${quote(path)} <<'${end}'\n${text}${end}\n${words.join(" ")} ${[path, ...more].map(quote).join(" ")}`;
}

export function curl(job, needsToken) {
  const token = needsToken ? `  -H "Authorization: Bearer $STOKER_TOKEN" \\\n` : "";
  return `curl -X POST ${location.origin}/api/v1/jobs \\\n  -H 'Content-Type: application/json' \\\n${token}  -d ${quote(JSON.stringify(job))}`;
}

function pythonValue(each) {
  // JSON's strings and numbers are Python's.
  if (typeof each === "boolean") return each ? "True" : "False";
  if (Array.isArray(each)) return `[${each.map(pythonValue).join(", ")}]`;
  if (typeof each === "object") return `{${Object.entries(each).map(([key, one]) => `${JSON.stringify(key)}: ${pythonValue(one)}`).join(", ")}}`;
  return JSON.stringify(each);
}

export function python(job, needsToken) {
  // `class` is a word of Python's own.
  const fields = Object.entries(job).map(([name, each]) => `        ${name === "class" ? "job_class" : name}=${pythonValue(each)},`);
  const token = needsToken ? `, token=os.environ["STOKER_TOKEN"]` : "";
  return `${needsToken ? "import os\n\n" : ""}from stoker.wire.client import Client, JobBody\n\nwith Client(${JSON.stringify(location.origin)}${token}) as client:\n    job = client.submit(JobBody(\n${fields.join("\n")}\n    ))\n    print(job.id)`;
}
