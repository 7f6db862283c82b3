//! fast_image_resize with AVX2.
use fast_image_resize::images::Image;
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use vector_programs::{Random, report};

fn main() {
    let mut random = Random::new(23);
    for kind in [
        PixelType::U8x4,
        PixelType::U8x3,
        PixelType::U8,
        PixelType::U16x3,
        PixelType::F32,
    ] {
        let bytes = if kind == PixelType::F32 {
            (0..120 * 90)
                .flat_map(|_| (random.real() as f32).to_le_bytes())
                .collect()
        } else {
            random.bytes(120 * 90 * kind.size())
        };
        let source = Image::from_vec_u8(120, 90, bytes, kind).expect("a picture");
        for filter in [FilterType::Bilinear, FilterType::Lanczos3, FilterType::Box] {
            let mut target = Image::new(70, 101, kind);
            let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
            Resizer::new()
                .resize(&source, &mut target, &options)
                .expect("a size");
            report("picture", target.buffer());
        }
    }
}
