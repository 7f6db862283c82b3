// SPDX-License-Identifier: Apache-2.0 OR MIT

// Counts how often each of 100 words is in a list of 2000.
function count(words, wanted) {
  let n = 0;
  for (const word of words) if (word === wanted) n++;
  return n;
}
const words = [];
for (let i = 0; i < 2000; i++) words.push('w' + (i % 100));
let all = 0;
for (let i = 0; i < 100; i++) all += count(words, 'w' + i);
console.log(all);
