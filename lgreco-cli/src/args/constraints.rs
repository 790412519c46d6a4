//! The flags `--group` and `--fix`.

use clap::Args;

/// Constraints on single layers.
#[derive(Args, Clone, Debug)]
pub struct ConstraintArgs {
    /// Layers that must share a setting, such as tied weights. In a group, `*` stands for the same text in all names:
    /// "h.*.q,h.*.k" ties q and k in each block. Repeat the option for each group. A table file may have groups too.
    #[arg(long, value_name = "LAYER,LAYER,...", value_parser = group)]
    pub group: Vec<Group>,
    /// The fixed setting of a layer: its label in the table, or its text in a plan file. A `*` in the layer's name
    /// stands for any text. The planner chooses the settings of all other layers. The budget covers all layers. Repeat
    /// the option for each layer.
    #[arg(long, value_name = "LAYER=SETTING", value_parser = fixed)]
    pub fix: Vec<String>,
}

/// The names of layers that share a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group(pub Vec<String>);

fn group(text: &str) -> Result<Group, String> {
    let layers: Vec<String> = text.split(',').map(str::to_owned).collect();
    let is_name = |layer: &String| !layer.is_empty() && layer.matches('*').count() < 2;
    match layers.len() >= 2 && layers.iter().all(is_name) {
        true => Ok(Group(layers)),
        false => {
            Err("expected the names of two layers or more, with commas between them and one * in each at most".into())
        }
    }
}

fn fixed(text: &str) -> Result<String, String> {
    match text.rsplit_once('=') {
        Some((layer, setting)) if !layer.is_empty() && !setting.is_empty() => Ok(text.into()),
        _ => Err("expected LAYER=SETTING, as in \"head.weight=qsgd 8\"".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_fixed_settings() {
        let names = |names: &[&str]| Ok(Group(names.iter().map(|&name| name.into()).collect()));
        assert_eq!(group("q,k.weight,v.*"), names(&["q", "k.weight", "v.*"]));
        assert_eq!(fixed("a=b=qsgd 8"), Ok("a=b=qsgd 8".into()));
        for bad in ["", "a", "a,", ",a", "a,,b", "a.*.*,b"] {
            assert!(group(bad).is_err(), "{bad}");
        }
        for bad in ["", "a", "a=", "=qsgd 8"] {
            assert!(fixed(bad).is_err(), "{bad}");
        }
    }
}
