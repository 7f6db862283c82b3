/*
 * Adds to an eventfd five times, reads it, and reads it once more when it is empty: what the kernel
 * does is in its fs/eventfd.c.
 */
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int main(void)
{
	uint64_t value = 3;
	int fd = eventfd(1, EFD_NONBLOCK);

	for (int i = 0; i < 5; i++)
		if (write(fd, &value, sizeof(value)) != sizeof(value))
			return 1;
	if (read(fd, &value, sizeof(value)) != sizeof(value) || value != 16)
		return 2;
	if (read(fd, &value, sizeof(value)) != -1)
		return 3;
	return close(fd);
}
