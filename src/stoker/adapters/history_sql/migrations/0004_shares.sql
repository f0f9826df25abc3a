-- Thousandths that a task held of each of its GPUs; 1000 = they were its own, as all were before.
ALTER TABLE allocation ADD COLUMN gpu_share INTEGER NOT NULL DEFAULT 1000;
