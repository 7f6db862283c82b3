/* Functions of the C library for which it chooses the code by the processor. */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	size_t length = 299 + argc;
	char *text = malloc(length + 1);

	if (!text)
		return 1;
	memset(text, 'a', length);
	text[length] = 0;
	return strlen(text) != length || !memcmp(text, argv[0], strlen(argv[0]));
}
