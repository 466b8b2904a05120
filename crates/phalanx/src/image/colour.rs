//! Changes of colours with the numbers of `tf.image`, on red, green and blue from 0 to 1.

/// All channels plus `delta` (`tf.image.adjust_brightness`).
pub fn adjust_brightness(pixels: &mut [f32], delta: f32) {
    pixels.iter_mut().for_each(|value| *value += delta);
}

/// Each channel away from its mean by `factor` as far (`tf.image.adjust_contrast`).
pub fn adjust_contrast(pixels: &mut [f32], channels: usize, factor: f32) {
    for c in 0..channels {
        let count = pixels.len() / channels;
        let sum: f64 = pixels
            .iter()
            .skip(c)
            .step_by(channels)
            .map(|&v| f64::from(v))
            .sum();
        let mean = (sum / count as f64) as f32;
        for value in pixels.iter_mut().skip(c).step_by(channels) {
            *value = (*value - mean) * factor + mean;
        }
    }
}

/// The saturation of HSV times `factor`, at most 1 (`tf.image.adjust_saturation`).
pub fn adjust_saturation(pixels: &mut [f32], factor: f32) {
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let [h, s, v] = to_hsv(*pixel);
        *pixel = from_hsv([h, (s * factor).clamp(0.0, 1.0), v]);
    }
}

/// The hue of HSV further by `delta` of its circle (`tf.image.adjust_hue`).
pub fn adjust_hue(pixels: &mut [f32], delta: f32) {
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let [h, s, v] = to_hsv(*pixel);
        *pixel = from_hsv([(h + delta).rem_euclid(1.0), s, v]);
    }
}

fn to_hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    let range = most - least;
    if range <= 0.0 {
        return [0.0, 0.0, most];
    }
    let sixths = if r == most {
        (g - b) / range
    } else if g == most {
        (b - r) / range + 2.0
    } else {
        (r - g) / range + 4.0
    };
    let saturation = if most > 0.0 { range / most } else { 0.0 };
    [(sixths / 6.0).rem_euclid(1.0), saturation, most]
}

fn from_hsv([h, s, v]: [f32; 3]) -> [f32; 3] {
    let ramp = |value: f32| (1.0 - s + s * value.clamp(0.0, 1.0)) * v;
    let sixths = h * 6.0;
    [
        ramp((sixths - 3.0).abs() - 1.0),
        ramp(2.0 - (sixths - 2.0).abs()),
        ramp(2.0 - (sixths - 4.0).abs()),
    ]
}
