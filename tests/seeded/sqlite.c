// SPDX-License-Identifier: Apache-2.0 OR MIT
// An extension of SQLite with a function tally(GRADE), which counts grades. A grade that does not
// exist overwrites the function that the counter calls for each.
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

struct tally {
	sqlite3_int64 counts[6];
	void (*counted)(struct tally *tally);
	sqlite3_int64 total;
};

static void add_one(struct tally *tally)
{
	tally->total++;
}

static struct tally tally = { .counted = add_one };

static void count(sqlite3_context *context, int number, sqlite3_value **values)
{
	int grade = sqlite3_value_int(values[0]);

	(void) number;
	tally.counted(&tally);
	tally.counts[grade]++;	// guilty
	sqlite3_result_int64(context, tally.total);
}

int sqlite3_extension_init(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
	(void) error;
	SQLITE_EXTENSION_INIT2(api);
	return sqlite3_create_function(db, "tally", 1, SQLITE_UTF8, 0, count, 0, 0);
}
