// SPDX-License-Identifier: Apache-2.0 OR MIT

// Counts how often each of 100 words is in a list of 2000.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

static long count(const std::vector<std::string> &words, const std::string &wanted)
{
    return std::count(words.begin(), words.end(), wanted);
}

int main()
{
    std::vector<std::string> words;
    for (int i = 0; i < 2000; i++)
        words.push_back("w" + std::to_string(i % 100));
    long all = 0;
    for (int i = 0; i < 100; i++)
        all += count(words, "w" + std::to_string(i));
    std::cout << all << '\n';
}
