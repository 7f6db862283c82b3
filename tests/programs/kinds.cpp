// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Virtual functions, templates and exceptions, in numbers that are easy to know. */

#include <cstdio>
#include <stdexcept>

#define NOINLINE __attribute__((noinline))

struct Shape {
    virtual ~Shape() {}
    virtual long area(long size) const = 0;
};

struct Square : Shape {
    NOINLINE long area(long size) const override { return size * size; }
};

struct Line : Shape {
    NOINLINE long area(long) const override { return 0; }
};

template <typename T> NOINLINE T twice(T value) {
    asm volatile("" : "+r"(value));
    return value + value;
}

NOINLINE static void refuse_odd(int number) {
    if (number % 2)
        throw std::runtime_error("odd");
}

NOINLINE static int is_odd(int number) {
    try {
        refuse_odd(number);
        return 0;
    } catch (const std::exception &) {
        return 1;
    }
}

int main() {
    Square square;
    Line line;
    const Shape *shapes[] = {&square, &line, &square};
    long sum = 0;
    for (int i = 0; i < 30; i++)
        sum += shapes[i % 3]->area(i);
    for (int i = 0; i < 10; i++)
        sum += is_odd(i);
    sum += twice(1) + twice(2L) + twice(3L);
    std::printf("%ld\n", sum);
}
