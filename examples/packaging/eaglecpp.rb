# SPDX-License-Identifier: MIT
# UNVERIFIED: written without Homebrew. A formula for a tap of your own (homebrew-core takes no formula that fetches its
# Python packages while it is built). Fill in url and sha256 of the source distribution that `python tests/packages.py
# --out DIR` makes; then `brew install --build-from-source ./eaglecpp.rb`.
class Eaglecpp < Formula
  include Language::Python::Virtualenv

  desc "Speculative decoding with EAGLE drafters for GGUF models on llama.cpp"
  url "ADDRESS/eaglecpp-0.1.0.tar.gz"
  sha256 "SHA256"
  license all_of: ["MIT", "Apache-2.0"]

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "python@3.13"

  def install
    # pip fetches llama-cpp-python's sources and compiles them, with Metal on Apple's processors
    virtualenv_create(libexec, "python3.13", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--verbose", buildpath
    bin.install_symlink libexec/"bin/eaglecpp"
  end

  service do
    run [opt_bin/"eaglecpp", "serve"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/eaglecpp --version")
  end
end
