//! Parameters of a dispatch: a struct of the shader, again in Rust.

/// Defines `Params`, of fields of four bytes each, as the shader's struct of this name has them.
macro_rules! params {
    ($(#[$about:meta])* $($field:ident),* $(,)?) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub(crate) struct Params {
            $(pub(crate) $field: u32,)*
        }

        #[cfg(test)]
        impl Params {
            /// Names and places of the fields.
            pub(crate) const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!(Params, $field))),*];
        }
    };
}
pub(crate) use params;
