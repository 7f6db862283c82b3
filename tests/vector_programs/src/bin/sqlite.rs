//! SQLite (C): joins, aggregates, text and floating point.
use vector_programs::Random;

fn main() -> rusqlite::Result<()> {
    let mut random = Random::new(8);
    let connection = rusqlite::Connection::open_in_memory()?;
    connection.execute_batch(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, weight REAL, kind INTEGER);
         CREATE INDEX by_kind ON item (kind, weight);
         BEGIN",
    )?;
    for id in 0..4000 {
        connection.execute(
            "INSERT INTO item VALUES (?1, ?2, ?3, ?4)",
            (id, random.text(20), random.real() * 1e6, random.below(40)),
        )?;
    }
    connection.execute_batch("COMMIT")?;
    for query in [
        "SELECT kind || ':' || count(*) || ':' || avg(weight) || ':' || max(length(name))
         FROM item GROUP BY kind ORDER BY sum(weight) LIMIT 9",
        "SELECT a.id || '-' || b.id || round(a.weight * b.weight, 3) FROM item a JOIN item b
         ON a.kind = b.kind AND a.weight < b.weight AND b.id < 90 ORDER BY a.weight LIMIT 9",
        "SELECT upper(name) || hex(substr(name, 2, 5)) FROM item WHERE name LIKE '%vector%lane%'
         ORDER BY name LIMIT 9",
        "PRAGMA integrity_check",
    ] {
        let mut statement = connection.prepare(query)?;
        for row in statement.query_map((), |row| row.get::<_, String>(0))? {
            println!("{}", row?.replace('\n', " "));
        }
    }
    Ok(())
}
