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
        let (hue, [least, most]) = hue_of(*pixel);
        let saturation = if most > 0.0 {
            (most - least) / most
        } else {
            0.0
        };
        let least = most * (1.0 - (saturation * factor).clamp(0.0, 1.0));
        *pixel = from_hue(hue, [least, most]);
    }
}

/// The hue of HSV further by `delta` of its circle (`tf.image.adjust_hue`): the most and the least of a pixel's channels stay, also below 0.
pub fn adjust_hue(pixels: &mut [f32], delta: f32) {
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let (hue, [least, most]) = hue_of(*pixel);
        *pixel = from_hue((hue + delta).rem_euclid(1.0), [least, most]);
    }
}

/// The hue as a share of the circle, and the least and the most of the channels.
fn hue_of([r, g, b]: [f32; 3]) -> (f32, [f32; 2]) {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    let range = most - least;
    if range <= 0.0 {
        return (0.0, [least, most]);
    }
    let sixths = if r == most {
        (g - b) / range
    } else if g == most {
        (b - r) / range + 2.0
    } else {
        (r - g) / range + 4.0
    };
    ((sixths / 6.0).rem_euclid(1.0), [least, most])
}

/// The pixel of this hue whose channels have this least and this most.
fn from_hue(hue: f32, [least, most]: [f32; 2]) -> [f32; 3] {
    let ramp = |value: f32| least + (most - least) * value.clamp(0.0, 1.0);
    let sixths = hue * 6.0;
    [
        ramp((sixths - 3.0).abs() - 1.0),
        ramp(2.0 - (sixths - 2.0).abs()),
        ramp(2.0 - (sixths - 4.0).abs()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of `tf.image.adjust_hue` and `adjust_saturation` for pixels below 0, as less brightness makes of dark ones.
    #[test]
    fn channels_below_zero_keep_their_colours() {
        let pixels = [-0.5, -0.2, -0.9, -0.125, 0.75, 0.25];
        let changed = |change: &dyn Fn(&mut [f32])| {
            let mut pixels = pixels;
            change(&mut pixels);
            pixels
        };
        let off = |got: [f32; 6], expected: [f32; 6]| {
            let apart = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-6, "{got:?}");
        };
        let hue = changed(&|pixels| adjust_hue(pixels, 0.3));
        off(hue, [-0.9, -0.36, -0.2, 0.075, -0.125, 0.75]);
        let saturation = changed(&|pixels| adjust_saturation(pixels, 0.5));
        off(saturation, [-0.2, -0.2, -0.2, 0.3125, 0.75, 0.5]);
    }
}
