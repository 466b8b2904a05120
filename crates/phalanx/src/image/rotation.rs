//! Rotation about the centre, as Keras' `RandomRotation` with bilinear interpolation.

use serde::{Deserialize, Serialize};

/// What is seen beyond the edges of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// The image in a mirror, edge pixels twice.
    #[default]
    Reflect,
    /// The nearest pixel of the edge.
    Nearest,
    /// Black, or what a layer says.
    Constant,
    /// The image again, from its other edge on.
    Wrap,
}

/// The image turned by `angle` (radians, counter-clockwise as Keras has it), of the same size.
#[must_use]
pub fn rotate(pixels: &[f32], (height, width): (usize, usize), angle: f32, fill: Fill) -> Vec<f32> {
    let channels = pixels.len() / (height * width).max(1);
    let (sin, cos) = angle.sin_cos();
    let (right, bottom) = (width as f32 - 1.0, height as f32 - 1.0);
    let left = (right - (cos * right - sin * bottom)) / 2.0;
    let top = (bottom - (sin * right + cos * bottom)) / 2.0;
    let mut out = vec![0.0; pixels.len()];
    for (i, pixel) in out.chunks_exact_mut(channels.max(1)).enumerate() {
        let (x, y) = ((i % width) as f32, (i / width) as f32);
        let at = (cos * x - sin * y + left, sin * x + cos * y + top);
        let at = (mapped(at.0, width, fill), mapped(at.1, height, fill));
        blend(pixels, (height, width), at, fill, pixel);
    }
    out
}

/// A coordinate moved into the image; of `Constant` it stays where it is.
fn mapped(x: f32, size: usize, fill: Fill) -> f32 {
    let size = size as f32;
    match fill {
        Fill::Constant => x,
        Fill::Nearest => x.clamp(0.0, size - 1.0),
        Fill::Wrap => wrapped(x, size),
        Fill::Reflect => {
            let folded = (x + 0.5).rem_euclid(2.0 * size);
            let folded = if folded >= size {
                2.0 * size - folded
            } else {
                folded
            };
            (folded - 0.5).clamp(0.0, size - 1.0)
        }
    }
}

/// A coordinate moved into an image that is repeated. As in TensorFlow, nothing is blended between its last pixel and the first again.
fn wrapped(x: f32, size: f32) -> f32 {
    let gaps = (size - 1.0).max(1.0);
    let inside = match x {
        x if x < 0.0 => x + size * ((-x / gaps).trunc() + 1.0),
        x if x > size - 1.0 => x - size * (x / gaps).trunc(),
        x => x,
    };
    inside.clamp(0.0, size - 1.0)
}

fn blend(
    pixels: &[f32],
    (height, width): (usize, usize),
    (x, y): (f32, f32),
    fill: Fill,
    out: &mut [f32],
) {
    let (x0, y0) = (x.floor(), y.floor());
    let channels = out.len();
    for (dy, dx) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0f32)] {
        let weight = (1.0 - (x - x0 - dx).abs()) * (1.0 - (y - y0 - dy).abs());
        let (cx, cy) = (x0 + dx, y0 + dy);
        let inside = cx >= 0.0 && cy >= 0.0 && cx < width as f32 && cy < height as f32;
        if weight == 0.0 || (!inside && fill == Fill::Constant) {
            continue;
        }
        let column = (cx.max(0.0) as usize).min(width - 1);
        let row = (cy.max(0.0) as usize).min(height - 1);
        let from = &pixels[(row * width + column) * channels..][..channels];
        for (sum, value) in out.iter_mut().zip(from) {
            *sum += weight * value;
        }
    }
}
