//! Tiny guests that start at the reset vector, for the software CPU and for the machines that it is
//! compared with. What they must report is written down from the manual.

#![allow(dead_code, reason = "each test crate uses its part")]
#![allow(clippy::unwrap_used, reason = "a test ends here")]

mod faults;
mod gates;
pub mod image;
mod paging;
mod protected;
mod real;
mod segments;
mod switches;
mod task_faults;
mod tasks;
mod virtual_8086;

use image::Image;

/// All programs.
pub fn all() -> Vec<(String, Image)> {
    let rows = [
        real::PROGRAMS,
        protected::PROGRAMS,
        faults::PROGRAMS,
        gates::PROGRAMS,
        segments::PROGRAMS,
        switches::PROGRAMS,
        tasks::PROGRAMS,
        task_faults::PROGRAMS,
        virtual_8086::PROGRAMS,
    ];
    let build = |&(name, build): &Row| {
        let mut image = Image::new();
        build(&mut image);
        (name.to_owned(), image)
    };
    let mut all: Vec<_> = rows.into_iter().flatten().map(build).collect();
    all.extend(faults::faults());
    all.extend(gates::inner_stacks());
    all.extend(task_faults::states());
    all.extend(paging::programs());
    all
}

/// Name, and what makes a program of an empty image.
type Row = (&'static str, fn(&mut Image));
