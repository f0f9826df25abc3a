-- Labels of jobs, as `,KEY=VALUE,KEY=VALUE,`; empty = it has none, as every job of before.
ALTER TABLE job ADD COLUMN labels TEXT NOT NULL DEFAULT '';
