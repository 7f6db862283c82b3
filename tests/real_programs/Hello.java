import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Hello {
	static long fibonacci(int n) {
		return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
	}

	public static void main(String[] arguments) throws Exception {
		var pool = Executors.newFixedThreadPool(2);
		Future<Long> first = pool.submit(() -> fibonacci(15));
		Future<Long> second = pool.submit(() -> fibonacci(16));
		System.out.println("Hello from Java: " + (first.get() + second.get()));
		pool.shutdown();
		System.exit(5);
	}
}
