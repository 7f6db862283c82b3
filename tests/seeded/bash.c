// SPDX-License-Identifier: Apache-2.0 OR MIT
// A builtin of bash, `note TEXT`, that keeps notes and shows them without an argument. A long note
// overwrites the pointer to the next one, and bash crashes when it follows that.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// As in bash's builtins.h and command.h.
struct word { char *text; int flags; };
struct words { struct words *next; struct word *word; };
struct builtin {
	const char *name;
	int (*function)(struct words *);
	int flags;
	const char *const *long_description;
	const char *short_description;
	char *handle;
};

struct entry { char text[12]; struct entry *next; };
static struct entry *notes;

static int note(struct words *words)
{
	struct entry *new;

	if (!words) {
		for (struct entry *one = notes; one; one = one->next)
			printf("%.12s\n", one->text);
		return 0;
	}
	new = calloc(1, sizeof(*new));
	new->next = notes;
	strcpy(new->text, words->word->text);	// guilty
	notes = new;
	return 0;
}

static const char *const description[] = { "Keeps notes.", NULL };
struct builtin note_struct = { "note", note, 1, description, "note [TEXT]", NULL };
