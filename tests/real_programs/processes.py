"""Two processes and two threads."""

import concurrent.futures as futures
import multiprocessing
import subprocess


def work(n):
    return sum(i * i for i in range(n))


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, [1000, 2000, 3000]))
    with futures.ThreadPoolExecutor(2) as threads:
        print(list(threads.map(work, [100, 200])))
    print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout)
