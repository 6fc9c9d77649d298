package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab/binaries"
)

// imageNames are the images that "image build" knows.
var imageNames = []string{"pelago", "whereami"}

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Assemble container images without a registry or an engine"}
	var dir string
	build := &cobra.Command{
		Use:   "build [pelago|whereami]…",
		Short: "Build images into archives that load-image and docker load read",
		Long: `Compile the programs and assemble the images
  ` + images.PelagoName + `     all components of Pelago, with iptables for the node daemon
  ` + images.WhereAmI + `   an HTTP server that says who asked, and tools for clients
into DIR/pelago.tar and DIR/whereami.tar. The same sources give the same digest.`,
		Example:   "  pelago-lab image build\n  pelago-lab image build whereami --output /tmp && pelago-lab load-image /tmp/whereami.tar",
		ValidArgs: imageNames,
		Args:      cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				names = imageNames
			}
			progress := steps(cmd)
			for _, name := range names {
				file, digest, err := buildImage(cmd.Context(), name, dir, progress)
				if err != nil {
					return err
				}
				progress(fmt.Sprintf("%s: %s", name, digest))
				fmt.Fprintln(cmd.OutOrStdout(), file)
			}
			return nil
		},
	}
	build.Flags().StringVarP(&dir, "output", "o", filepath.Join("out", "images"), "directory of the archives")
	cmd.AddCommand(build)
	return cmd
}

// buildImage compiles what the image holds and assembles it into dir.
func buildImage(ctx context.Context, name, dir string, progress func(string)) (file, digest string, err error) {
	bin := filepath.Join(dir, "bin")
	var image images.Image
	if name == "whereami" {
		program := filepath.Join(bin, "whereami")
		if err := binaries.Program(ctx, "./test/images/whereami", program); err != nil {
			return "", "", err
		}
		image, err = images.WhereAmIImage(program)
	} else {
		var built map[string]string
		if built, err = pelagoPrograms(ctx, bin, progress); err != nil {
			return "", "", err
		}
		image, err = images.Pelago(images.Host(), built)
	}
	if err != nil {
		return "", "", err
	}
	file = filepath.Join(dir, name+".tar")
	digest, err = image.Write(file)
	return file, digest, err
}

// pelagoPrograms compiles those components that the source tree has.
func pelagoPrograms(ctx context.Context, bin string, progress func(string)) (map[string]string, error) {
	root, err := binaries.Repository()
	if err != nil {
		return nil, err
	}
	built := map[string]string{}
	for _, name := range images.PelagoPrograms() {
		sources, err := filepath.Glob(filepath.Join(root, "cmd", name, "*.go"))
		if err != nil {
			return nil, err
		}
		if len(sources) == 0 {
			continue // a component that this tree does not have yet
		}
		file := filepath.Join(bin, name)
		if err := binaries.Program(ctx, "./cmd/"+name, file); err != nil {
			return nil, err
		}
		built[name] = file
	}
	var names []string
	for name := range built {
		names = append(names, name)
	}
	slices.Sort(names)
	progress("built " + strings.Join(names, ", "))
	return built, nil
}
