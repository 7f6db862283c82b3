// SPDX-License-Identifier: Apache-2.0 OR MIT
#include <stdio.h>
#include <stdlib.h>

static int parse(const char *text)
{
    if (*text == '-') return -parse(text + 1);
    return atoi(text);
}

static int divide(int number, int by)
{ return number / by; }

// Divides 100 by each argument.
int main(int argc, char **argv)
{
    int rest = 100;

    for (int i = 1; i < argc; i++)
        // The program crashes here if an argument is 0.
        rest = divide(rest, parse(argv[i]));
    printf("%d\n", rest);
    return 0;
}
