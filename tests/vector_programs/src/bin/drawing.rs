//! Paths and gradients of tiny-skia.
use tiny_skia::*;
use vector_programs::report;

fn main() {
    let mut picture = Pixmap::new(160, 120).expect("a picture");
    let mut path = PathBuilder::new();
    path.move_to(10.5, 20.0);
    path.cubic_to(150.0, -30.0, 20.0, 140.0, 140.0, 110.25);
    path.quad_to(80.0, 10.0, 30.0, 100.0);
    path.close();
    let path = path.finish().expect("a path");
    let mut paint = Paint::default();
    paint.shader = LinearGradient::new(
        Point::from_xy(0.0, 0.0),
        Point::from_xy(160.0, 120.0),
        vec![
            GradientStop::new(0.0, Color::BLACK),
            GradientStop::new(1.0, Color::WHITE),
        ],
        SpreadMode::Reflect,
        Transform::from_rotate(20.0),
    )
    .expect("a gradient");
    picture.fill_path(
        &path,
        &paint,
        FillRule::EvenOdd,
        Transform::identity(),
        None,
    );
    report("filled", picture.data());
    paint.set_color_rgba8(200, 60, 90, 120);
    paint.blend_mode = BlendMode::SoftLight;
    let stroke = Stroke {
        width: 7.5,
        dash: StrokeDash::new(vec![9.0, 4.0], 1.0),
        ..Stroke::default()
    };
    picture.stroke_path(
        &path,
        &paint,
        &stroke,
        Transform::from_scale(0.9, 1.1),
        None,
    );
    report("stroked", picture.data());
}
