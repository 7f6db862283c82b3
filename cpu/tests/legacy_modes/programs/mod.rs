//! Tiny guests that start at the reset vector, for the software CPU and for the machines that it is compared with.
//! What they must report is written down from the manual.

#![allow(dead_code, reason = "each test crate uses its part")]
#![allow(clippy::unwrap_used, reason = "a test ends here")]

pub mod image;
mod switches;

use image::Image;

/// All programs.
pub fn all() -> Vec<(&'static str, Image)> {
    let rows: [&[Row]; 1] = [switches::PROGRAMS];
    let build = |&(name, build): &Row| {
        let mut image = Image::new();
        build(&mut image);
        (name, image)
    };
    rows.into_iter().flatten().map(build).collect()
}

/// Name, and what makes a program of an empty image.
type Row = (&'static str, fn(&mut Image));
