"""Threads, forks, signals and the end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

from torch_tpu.runtime import interrupts


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own."""
    return subprocess.run(
        [sys.executable, "-c", "import torch\n" + textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_ends_well(done: subprocess.CompletedProcess[str], output: str) -> None:
    assert (done.returncode, done.stdout.strip()) == (0, output), done.stderr
    assert "rror" not in done.stderr and "terminate" not in done.stderr, done.stderr


def test_threads_share_the_call_cache():
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            start.wait()
            for size in range(3, 15):  # all threads meet each new signature at once
                x = torch.full((size, 2), float(number), device="tpu")
                y = (x * 2 + 1).sum(0)
                assert y.tolist() == [size * (2 * number + 1)] * 2, (size, number, y)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    torch.tpu._clear_cache()
    for thread in threads:
        thread.join()
    assert not failures, failures


ENDINGS = {
    "live tensors": "x = torch.ones(3, device='tpu'); y = x[1:]; print(len(y))",
    "running work": """
        x = torch.ones(600, 600, device="tpu")
        for _ in range(30):
            x = x @ x * 0.001
        print("started")
    """,
    "a live graph": """
        model = torch.nn.Linear(4, 4).to("tpu")
        loss = model(torch.ones(2, 4, device="tpu")).sum()
        loss.backward()
        graph = model(torch.ones(2, 4, device="tpu")).sum()
        print("backward")
    """,
    "a cycle": """
        class Node:
            def __init__(self): self.me, self.x = self, torch.ones(3, device="tpu") * 2
            def __del__(self): self.x = None
        node = Node(); torch.keep = node
        print("cycle")
    """,
    "events and streams": """
        event = torch.tpu.Event(enable_timing=True); event.record()
        stream = torch.tpu.Stream(); x = torch.ones(500, 500, device="tpu"); x = x @ x; event.record()
        print("recorded")
    """,
    "a thread at work": """
        import threading
        def work():
            x = torch.ones(50, 50, device="tpu", requires_grad=True)
            while True:
                (x @ x).sum().backward()
        thread = threading.Thread(target=work, daemon=True); thread.start()
        import time; time.sleep(1.5); print("running", flush=True)
    """,
    "an exit": "import sys; x = torch.ones(3, device='tpu') + 1; print('bye'); sys.exit(0)",
    "a hook at exit": """
        import atexit
        x = torch.ones(3, device="tpu")
        atexit.register(lambda: print((x + 1).sum().item()))
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_orderly_exit(ending):
    expected = {
        "live tensors": "2",
        "running work": "started",
        "a live graph": "backward",
        "a cycle": "cycle",
        "events and streams": "recorded",
        "a thread at work": "running",
        "an exit": "bye",
        "a hook at exit": "6.0",
    }[ending]
    assert_ends_well(child(ENDINGS[ending]), expected)


def test_an_error_at_the_top_keeps_its_exit_code():
    done = child("x = torch.ones(3, device='tpu'); raise SystemExit(3)")
    assert done.returncode == 3 and not done.stderr
    done = child("x = torch.ones(3, device='tpu'); y = x @ torch.ones(2, device='tpu')")
    assert done.returncode == 1 and "Traceback" in done.stderr and "Fatal" not in done.stderr


def test_use_in_a_forked_child():
    done = child("""
        import os
        from torch_tpu.errors import ForkError
        x = torch.ones(3, device="tpu")
        x.sum().item()
        pid = os.fork()
        if pid == 0:
            assert torch.ones(2).sum() == 2 and not torch.tpu.is_initialized() and torch.tpu._is_in_bad_fork()
            torch.manual_seed(0)  # as DataLoader's workers do
            calls = [lambda: x + 1, lambda: torch.ones(2, device="tpu"), lambda: torch.empty(2, device="tpu"),
                     lambda: x.cpu(), lambda: torch.ones(2).to("tpu"), torch.tpu.synchronize]
            count = 0
            for call in calls:
                try:
                    call()
                except ForkError as error:
                    assert 'start processes by "spawn"' in str(error)
                    count += 1
            print(count, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print((x + 1).sum().item())
    """)
    assert_ends_well(done, "6\n6.0")


def test_a_fork_before_the_device_is_used():
    done = child("""
        import os
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        print((torch.ones(2, device="tpu") + 1).sum().item(), flush=True)
    """)
    assert_ends_well(done, "4.0\n4.0")


def test_spawned_processes_have_a_device_of_their_own(tmp_path):
    (tmp_path / "work.py").write_text("""
import torch
def work(number):
    return (torch.ones(2, device="tpu") * number).sum().item()
if __name__ == "__main__":
    torch.ones(1, device="tpu").item()
    with torch.multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, [1, 2, 3]))
""")
    done = subprocess.run([sys.executable, "work.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "[2.0, 4.0, 6.0]", done.stderr


def test_interrupt_during_a_compile(tmp_path):
    code = """
        import signal, threading, os
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started without it
        x = torch.ones(64, device="tpu")
        def step(n):
            y = x[:n]
            for i in range(40):
                y = (y.sin() * i).cos().roll(1)
            return y.sum()
        step(3).item()
        torch.linalg.svd(torch.ones(2, 2, device="tpu"))  # imports what it needs
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        interrupted = 0
        try:
            for n in range(4, 64):
                torch.linalg.svd(torch.ones(n, n, device="tpu"))
        except KeyboardInterrupt:
            interrupted = 1
        print(interrupted, (x + 1).sum().item(), step(5).isfinite().item())
    """
    assert_ends_well(child(code, TORCH_TPU_CACHE="0"), "1 128.0 True")


def test_an_interrupted_compilation_is_waited_for_at_exit():
    """XLA goes on with it, and its threads must not outlive the process's objects."""
    code = """
        import os, signal, threading, time
        from torch_tpu.runtime import mlir
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = torch.randn(16, 16, device="tpu")
        def chain(x):
            for i in range(300):
                x = torch.sin(x) @ x + i * 1.000001
            return x
        def interrupt():
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        def parse(text, parse=mlir.parse):
            if len(text) > 50_000:
                threading.Thread(target=interrupt, daemon=True).start()
            return parse(text)
        mlir.parse = parse
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
            try:
                chain(x).sum().item()
            except KeyboardInterrupt:
                print(sum(thread.name == "torch_tpu compilation" for thread in threading.enumerate()))
    """
    assert_ends_well(child(code, TORCH_TPU_CACHE="0"), "1")


@pytest.mark.parametrize("interrupts", [1, 2])
def test_a_second_interrupt_does_not_wait(interrupts):
    code = f"""
        import os, signal, threading, time
        from torch_tpu.runtime.interrupts import interruptible
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def interrupt():
            for _ in range({interrupts}):
                time.sleep(2)
                os.kill(os.getpid(), signal.SIGINT)
        assert interruptible(lambda: 7) == 7
        try:
            interruptible(lambda: 1 / 0)
        except ZeroDivisionError:
            threading.Thread(target=interrupt, daemon=True).start()
        try:
            interruptible(lambda: (time.sleep(6), print("ended")))
        except KeyboardInterrupt:
            print("left", flush=True)
    """
    done = child(code)
    assert done.returncode == (0 if interrupts == 1 else 130) and "waiting for XLA" in done.stderr, done.stderr
    assert done.stdout.split() == (["left", "ended"] if interrupts == 1 else ["left"])


def test_interrupt_from_outside_ends_the_process():
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal, torch\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
         "x = torch.ones(300, 300, device='tpu')\nprint('on', flush=True)\nwhile True: y = (x @ x).sum().item()"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline().strip() == "on"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    try:
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in error and "Fatal" not in error and process.returncode in (1, 130, -signal.SIGINT)


def test_import_is_quick_and_loads_no_xla():
    done = child("""
        import sys
        heavy = [m for m in sys.modules if m.split(".")[0] in ("jaxlib", "ml_dtypes") or m.startswith(
            ("torch_tpu.ops", "torch_tpu.eager", "torch_tpu.hlo", "torch_tpu.runtime.client"))]
        assert not heavy, heavy
        assert torch.tpu.is_available() and not torch.tpu.is_initialized() and torch.tpu.get_device_name() == "XLA CPU"
        assert not [m for m in sys.modules if m.startswith("jaxlib")]
        print("light")
    """)
    assert_ends_well(done, "light")


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_platform_that_is_absent(platform):
    done = child(
        """
        assert not torch.tpu.is_available() and torch.tpu.device_count() == 0
        assert not torch.accelerator.is_available() and torch.accelerator.device_count() == 0
        try:
            torch.ones(1, device="tpu")
        except RuntimeError as error:
            print(type(error).__name__, "TORCH_TPU_PLATFORM" in str(error))
        """,
        TORCH_TPU_PLATFORM=platform,
    )
    if done.returncode == 1 and "AssertionError" in done.stderr:
        pytest.skip(f"this machine may have a {platform}")
    assert_ends_well(done, "PlatformError True")


def test_an_interrupt_while_the_thread_starts_is_waited_for_too(monkeypatch):
    ended, start = [], threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupts, "_left", [])
    monkeypatch.setattr(interrupts.atexit, "register", lambda function: None)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupted)
        interrupts.interruptible(lambda: (time.sleep(0.5), ended.append(True)))
    interrupts._wait()
    assert ended
