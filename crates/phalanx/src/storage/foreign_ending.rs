//! Endings of names that promise the formats of others.

use std::path::Path;

/// Whose format the ending of a path promises, where this library writes one of its own.
pub(crate) fn owner_of_ending(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "h5" | "hdf5" | "keras" => Some("Keras"),
        "pt" | "pth" => Some("PyTorch"),
        "onnx" => Some("ONNX"),
        "npz" => Some("NumPy"),
        _ => None,
    }
}

/// What is wrong with a name that promises the format of others, and a better one: of weights in a file, or of a directory.
pub(crate) fn foreign_ending(path: &Path, is_file: bool) -> Option<String> {
    let owner = owner_of_ending(path)?;
    let plain = path.with_extension("");
    let (what, better) = match is_file {
        true if plain.extension() == Some("weights".as_ref()) => {
            ("a file of safetensors", plain.with_extension("safetensors"))
        }
        true => ("a file of safetensors", path.with_extension("safetensors")),
        false => ("a directory", path.with_extension("phx")),
    };
    let (path, better) = (path.display(), better.display());
    Some(format!(
        "`{path}` is by its ending of {owner}, which does not read what is written, {what}; name it `{better}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::foreign_ending;

    #[test]
    fn endings_of_others_are_told() {
        let told = |path: &str, is_file| foreign_ending(path.as_ref(), is_file);
        for (path, is_file, better) in [
            (
                "a/m.weights.h5",
                true,
                "Keras, which does not read what is written, a file of safetensors; name it `a/m.safetensors`",
            ),
            ("w.PT", true, "name it `w.safetensors`"),
            ("m.keras", false, "a directory; name it `m.phx`"),
        ] {
            let text = told(path, is_file).unwrap();
            assert!(text.ends_with(better), "{text}");
        }
        for path in ["m", "m.phx", "w.safetensors", "ckpt_0.5", "m.ckpt"] {
            assert_eq!(told(path, true), None, "{path}");
        }
    }
}
