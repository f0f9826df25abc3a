"""What does a training job see? Stands in for a real one: it says which GPUs it was given."""

import os

gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
print(f"job {os.environ['STOKER_JOB_ID']} trains on {len(gpus)} GPUs: {', '.join(gpus)}")
