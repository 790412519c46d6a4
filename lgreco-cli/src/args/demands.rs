//! Groups of layers and fixed settings, as words.

use clap::Args;

/// What a plan must do for single layers.
#[derive(Args, Clone, Debug)]
pub struct Demands {
    /// Layers that must get the same setting, such as tied weights. Repeat it for each group. A table file may have groups, too.
    #[arg(long, value_name = "LAYER,LAYER,...", value_parser = group)]
    pub group: Vec<Group>,
    /// A layer's setting, by the label that the table has for it or as in a plan file; the planner decides the rest, within a
    /// budget for all. Repeat it for each layer.
    #[arg(long, value_name = "LAYER=SETTING", value_parser = fixed)]
    pub fix: Vec<Fixed>,
}

/// The names of layers that share a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group(pub Vec<String>);

/// A layer's name and its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The layer.
    pub layer: String,
    /// A label or a setting as text.
    pub setting: String,
}

fn group(text: &str) -> Result<Group, String> {
    let layers: Vec<String> = text.split(',').map(str::to_owned).collect();
    match layers.len() >= 2 && layers.iter().all(|layer| !layer.is_empty()) {
        true => Ok(Group(layers)),
        false => Err("expected the names of two layers or more, with commas between them".into()),
    }
}

fn fixed(text: &str) -> Result<Fixed, String> {
    match text.rsplit_once('=') {
        Some((layer, setting)) if !layer.is_empty() && !setting.is_empty() => {
            Ok(Fixed { layer: layer.into(), setting: setting.into() })
        }
        _ => Err("expected LAYER=SETTING, as in \"head.weight=qsgd 8\"".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_fixed_settings() {
        let names = |names: &[&str]| Ok(Group(names.iter().map(|&name| name.into()).collect()));
        assert_eq!(group("q,k.weight,v"), names(&["q", "k.weight", "v"]));
        assert_eq!(fixed("a=b=qsgd 8"), Ok(Fixed { layer: "a=b".into(), setting: "qsgd 8".into() }));
        for bad in ["", "a", "a,", ",a", "a,,b"] {
            assert!(group(bad).is_err(), "{bad}");
        }
        for bad in ["", "a", "a=", "=qsgd 8"] {
            assert!(fixed(bad).is_err(), "{bad}");
        }
    }
}
