/* A program without a C library, whose execution the tests record on the software CPU. */

struct point {
	int x, y;
};

int counter;
long total;
double ratio;
struct point last;
char text[32] = "the quick brown fox";

static int square(int n)
{
	int result = n * n;

	return result;
}

static void visit(int n)
{
	counter++;
	last.x = n;
	last.y = square(n);
	total += last.y;
}

static int recurse(int depth)
{
	if (depth == 0)
		return 1;
	return recurse(depth - 1) + depth;
}

int main(void)
{
	int i;

	for (i = 0; i < 5; i++)
		visit(i);
	ratio = total / 4.0;
	text[4] = 'Q';
	total = recurse(3);
	return counter;
}

__attribute__((naked, noreturn)) void _start(void)
{
	__asm__("xor %ebp, %ebp\n\tcall main\n\tcli\n\thlt");
}
