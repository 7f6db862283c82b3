// SPDX-License-Identifier: Apache-2.0 OR MIT

// Counts how often each of 100 words is in a list of 2000.
import java.util.*;

public class Words {
    static int count(List<String> words, String wanted) {
        int n = 0;
        for (String word : words)
            if (word.equals(wanted))
                n++;
        return n;
    }

    public static void main(String[] args) {
        List<String> words = new ArrayList<>();
        for (int i = 0; i < 2000; i++)
            words.add("w" + i % 100);
        int all = 0;
        for (int i = 0; i < 100; i++)
            all += count(words, "w" + i);
        System.out.println(all);
    }
}
