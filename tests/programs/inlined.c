// SPDX-License-Identifier: Apache-2.0 OR MIT
// Functions of which one is inlined, with known counts of its branches.
#include <stdio.h>

static int weigh(int x) {
    if (x % 3 == 0) return x * 2; if (x % 7 == 1) return x - 5; return x + 1;
}

__attribute__((noinline)) int rare(int x) { return x ^ 0x55; }

__attribute__((noinline)) int work(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += weigh(i);
        if (i % 1000 == 999)
            sum += rare(i);
    }
    return sum;
}

int main(void) {
    printf("%d\n", work(20000));
    return 0;
}
