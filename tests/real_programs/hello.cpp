#include <algorithm>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

int main()
{
	std::map<std::string, int> lengths;
	for (const std::string word : {"one", "two", "three", "four"})
		lengths[word] = static_cast<int>(word.size());
	for (const auto &[word, length] : lengths)
		std::cout << word << ' ' << length << '\n';
	try {
		std::vector<int>().at(0);
	} catch (const std::out_of_range &) {
		std::cout << "caught\n";
	}
}
