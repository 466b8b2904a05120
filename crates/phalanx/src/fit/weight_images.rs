//! Variables as the images that Keras' `TensorBoard` makes of them.

use phalanx_graph::HostTensor;
use phalanx_summary::Image;

/// The images of a variable, if it can be seen as some: a vector is a line, a matrix an image whose longer side is its width, and of three
/// dims each of the last is an image. Numbers below 0 are black and above 1 white, as in TensorBoard.
pub(super) fn weight_images(value: &HostTensor) -> Vec<Image> {
    let dims: Vec<usize> = value
        .dims()
        .iter()
        .copied()
        .filter(|&dim| dim != 1)
        .collect();
    let numbers: Vec<f32> = value.to_f64().iter().map(|&x| x as f32).collect();
    let image = |width: usize, height: usize, channels, numbers: &[f32]| {
        let (width, height) = (u32::try_from(width).ok()?, u32::try_from(height).ok()?);
        Image::of_numbers(width, height, channels, numbers).ok()
    };
    let images = match dims[..] {
        [length] => vec![image(1, length, 1, &numbers)],
        [rows, columns] if rows > columns => {
            vec![image(
                rows,
                columns,
                1,
                &transposed(&numbers, rows, columns),
            )]
        }
        [rows, columns] => vec![image(columns, rows, 1, &numbers)],
        [rows, columns, count] => (0..count)
            .map(|which| {
                let of_one: Vec<f32> = numbers.iter().skip(which).step_by(count).copied().collect();
                image(columns, rows, 1, &of_one)
            })
            .collect(),
        [count, rows, columns, channels @ (3 | 4)] => numbers
            .chunks(rows * columns * channels)
            .take(count)
            .map(|pixels| image(columns, rows, channels, pixels))
            .collect(),
        _ => Vec::new(),
    };
    images.into_iter().flatten().collect()
}

fn transposed(numbers: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    places.map(|place| numbers[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(dims: &[usize]) -> Vec<(u32, u32)> {
        let numbers: Vec<f32> = (0..dims.iter().product()).map(|x| x as f32).collect();
        let images = weight_images(&HostTensor::new(dims.to_vec(), &numbers));
        images.iter().map(Image::size).collect()
    }

    #[test]
    fn images_have_the_sizes_that_keras_gives_them() {
        // [1, length, 1, 1] there: an image of that height.
        assert_eq!(sizes(&[5]), [(1, 5)]);
        assert_eq!(sizes(&[5, 3]), [(5, 3)]);
        assert_eq!(sizes(&[3, 5]), [(5, 3)]);
        assert_eq!(sizes(&[3, 3, 1, 4]), [(3, 3); 4]);
        assert_eq!(sizes(&[3, 2, 4, 3]), [(4, 2); 3]);
        assert_eq!(sizes(&[3, 2, 4, 5]), []);
        assert_eq!(
            transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 2),
            [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]
        );
    }
}
