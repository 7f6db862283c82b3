import java.io.IOException;
import java.nio.file.*;
import java.util.concurrent.CountDownLatch;

/** Threads with names, and what the kernel calls all threads of the process: ID and name. */
public class ThreadNames {
    static final CountDownLatch named = new CountDownLatch(3), seen = new CountDownLatch(1);

    static void body() {
        named.countDown();
        try {
            seen.await();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Thread[] threads = new Thread[3];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(ThreadNames::body, "pool-1-thread-" + i);
            threads[i].start();
        }
        named.await();
        try (DirectoryStream<Path> tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path task : tasks) {
                String name = Files.readString(task.resolve("comm"));
                System.out.print(task.getFileName() + " " + name);
            }
        }
        System.out.flush();
        seen.countDown();
        for (Thread thread : threads)
            thread.join();
    }
}
