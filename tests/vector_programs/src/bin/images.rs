//! PNG, JPEG and WebP: encoders, decoders and filters of the crate image.
use image::{ImageFormat, Rgb, RgbImage, imageops};
use std::io::Cursor;
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(22);
    let picture = RgbImage::from_fn(96, 64, |x, y| {
        Rgb([
            (x * 3) as u8,
            (y * 4) as u8,
            (x * y / 16) as u8 ^ random.below(16) as u8,
        ])
    });
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
        let mut file = Vec::new();
        picture
            .write_to(&mut Cursor::new(&mut file), format)
            .expect("encoding");
        report("file", &file);
        let again = image::load_from_memory_with_format(&file, format).expect("decoding");
        report("pixels", again.to_rgb8().as_raw());
    }
    report("blur", imageops::blur(&picture, 1.7).as_raw());
    let small = imageops::resize(&picture, 40, 30, imageops::FilterType::Lanczos3);
    report("resize", small.as_raw());
}
