"""What do the options of sbatch mean here?"""

import pytest

from stoker.cli.sbatch import BadDirective, Translated, options_in, translated


def read(*lines: str) -> Translated:
    return translated([option for at, line in enumerate(lines, 2) for option in options_in(line, at)])


def words(*lines: str) -> str:
    return " ".join(f"{name}={value}" if value else name for name, value, _ in read(*lines).options)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["--job-name=sweep --time=1-12:00:00"], "--name=sweep --time=1-12:00:00"),
        (["-J sweep -t30 -p gpu  # a remark"], "--name=sweep --time=30 --partition=gpu"),
        (
            ["--array=0-99%10", "-o out-%A_%a.txt", "--error e.txt"],
            "--array=0-99%10 --output=out-%A_%a.txt --error=e.txt",
        ),
        (['--comment="two words" --hold'], "--comment=two words --hold"),
        (["--requeue"], ""),
        (["--no-requeue"], "--no-requeue"),
        (["--export=ALL,X=1 -D /data"], "--export=ALL,X=1 --workdir=/data"),
        (["--begin=now+1hour"], "--begin=now+1h"),
        (["--begin=now+90"], "--begin=now+90s"),
        (["--begin=16:00"], "--begin=16:00"),
        (["--dependency=afterok:12:13_4,afterany:7"], "--after=ok:12,ok:13_4,any:7"),
        (["-d afternotok:5"], "--after=notok:5"),
        (["-x gpu-1,gpu-2"], "--exclude=gpu-1,gpu-2"),
        (["--mail-type=END,FAIL --mail-user=a@b.example"], "--notify=end,fail --notify-to=mail:a@b.example"),
        (
            ["--mail-type=ALL,TIME_LIMIT_80", "--mail-user a@b.example"],
            "--notify=start,end,fail --notify-to=mail:a@b.example",
        ),
        (["-w gpu-1"], "--where=stoker.io/hostname in (gpu-1)"),
    ],
)
def test_an_option_with_a_counterpart_is_translated(lines: list[str], said: str) -> None:
    assert words(*lines) == said
    assert read(*lines).notes == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["--gres=gpu:2"], "--gpus=2"),
        (["--gres=gpu"], "--gpus=1"),
        (["--gres=gpu:a100:4"], "--gpus=4 --gpu-model=a100"),
        (["--gpus=h100:8"], "--gpus=8 --gpu-model=h100"),
        (["-G 2 -c 8 --mem=16G"], "--gpus=2 --cpus=8 --memory=16384MiB"),
        (["--gpus-per-node=4", "--cpus-per-gpu=6", "--mem-per-gpu=20G"], "--gpus=4 --cpus=24 --memory=81920MiB"),
        (["--cpus-per-task=4 --mem-per-cpu=1500"], "--cpus=4 --memory=6000MiB"),
        (["--nodes=1 --ntasks=1 --gres=gpu:1"], "--gpus=1"),
        (["--nodes=2 --gpus-per-node=8 --mem=64G"], "--tasks=2 --tasks-per-node=1 --gpus=8 --memory=65536MiB"),
        (["-N 2 -n 2 --gpus=16"], "--tasks=2 --tasks-per-node=1 --gpus=8"),
        (["--ntasks=4 --gpus-per-task=1"], "--tasks=4 --gpus=1"),
        (["--ntasks=4 --gpus=8 --mem=32G"], "--tasks=4 --gpus=2 --memory=8192MiB"),
    ],
)
def test_what_sbatch_counts_by_node_or_job_is_given_to_each_task(lines: list[str], said: str) -> None:
    assert words(*lines) == said


def test_of_an_option_that_is_given_twice_the_last_holds_as_in_sbatch() -> None:
    assert words("--gpus=1 --time=1", "--gpus=2") == "--time=1 --gpus=2"


@pytest.mark.parametrize("said", ["USR1@120", "B:USR1@120", "R:USR1@120", "RB:USR1@120"])
def test_a_signal_before_the_end_is_the_same_whoever_was_to_hear_it(said: str) -> None:
    assert read(f"--signal={said}").options == [("--signal", "USR1@120", 2)]


def test_what_has_no_counterpart_is_named_with_its_line_and_ignored() -> None:
    made = read("--time=5 --qos=high", "--mail-type=END --mail-user=ada")
    assert made.options == [("--time", "5", 2)]
    (note,) = made.notes
    assert note.startswith(
        "ignored, for want of a counterpart: --qos (line 2), --mail-type (line 3), --mail-user (line 3)"
    )


def test_it_is_said_that_each_task_runs_the_whole_script() -> None:
    assert read("--nodes=2").notes == [
        "each task runs the whole script, and there is no srun: leave the word out of its lines"
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gups=2", "sbatch has no option --gups: did you mean `--gpus`?"),
        ("-Z 1", "sbatch has no option -Z"),
        ("train.py", "'train.py' is no option: options begin with `--`, and values with blanks are quoted"),
        ("--time", "--time needs a value"),
        ("--hold=yes", "--hold takes no value"),
        ('--comment="x', "it can't be read: No closing quotation: quotes come in pairs"),
        ("--constraint=a100", "--constraint=a100 has no counterpart here: select nodes by their labels"),
        ("--exclusive", "--exclusive has no counterpart here: ask for the CPUs and GPUs of a node"),
        ("--container-image=x", "--container-image=x has no counterpart here: name an image"),
        ("--dependency=singleton", "the dependency 'singleton' has no counterpart here"),
        ("--dependency=afterok:1?afterok:2", "one of several is no condition here"),
        ("--exclude=gpu-[1-3]", "--exclude=gpu-[1-3]: ranges of names aren't read here"),
        ("--gres=shard:2", "--gres=shard:2 has no counterpart here"),
        ("--gpus=lots", "--gpus=lots says no number of GPUs"),
        ("--nodes=2-4", "--nodes=2-4 is no number above 0: a job is given as much as it says"),
        ("--nodes=2 --gpus=3", "--gpus=3 can't be divided evenly among 2 tasks"),
        ("--nodes=2 --ntasks-per-node=8", "16 tasks on 2 nodes: they can't be kept together on a node here"),
        ("--mem=0", "--mem=0 is no size of memory above 0"),
        ("--mem-per-gpu=4G", "--mem-per-gpu=4G counts by GPU, and the script asks for none"),
    ],
)
def test_what_would_run_something_else_is_refused_and_so_is_a_typo(line: str, message: str) -> None:
    with pytest.raises(BadDirective) as refused:
        read("--time=1", line)
    assert refused.value.line == 3
    assert message in str(refused.value)
