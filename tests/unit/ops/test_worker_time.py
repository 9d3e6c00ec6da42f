from ops.bench.worker_time import WorkerTimeSettings, play


def test_iterations_of_the_whole_loop_are_measured_at_the_size_asked_for() -> None:
    ours, its = play(WorkerTimeSettings(running=4, iterations=10))
    assert len(ours) == len(its) == 10
    assert all(each > 0 for each in ours)
    assert all(each > 0 for each in its)
